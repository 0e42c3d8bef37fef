// Checks of arguments, shared by the kernels: each throws std::invalid_argument that names the argument.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/kernels/ovq_options.h"
#include "ovq/kernels/view.h"

namespace ovq::kernels {

// A run of tokens of one batch entry: a whole entry, or one packed sequence.
struct Sequence {
  int64_t batch = 0, first = 0, length = 0;
};

std::vector<Sequence> check_sequences(const char* op, int64_t batch, int64_t time, std::span<const int64_t> cu_seqlens);

// q [B, Tq, Hq, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], beta [Hq]
void check_inputs(const char* op, const View<const float>& q, const View<const float>& k, const View<const float>& v,
                  std::span<const float> beta);

// The queries' place among the keys of causal attention.
void check_attention_span(const char* op, int64_t queries, int64_t keys, int64_t window, int64_t query_offset,
                          bool packed);

void check_options(const char* op, const OvqOptions& options, int64_t key_dim);

// Every element positive and finite.
void check_weights(const char* op, const View<const float>& weights);

// A view of exactly these sizes; without data only where `optional`.
template <class T>
void check_shape(const char* op, const char* name, const View<T>& view, int64_t batch, int64_t time, int64_t heads,
                 int64_t dim, bool optional = false) {
  const bool empty = batch * time * heads * dim == 0;
  if (view.data == nullptr && (optional || empty)) return;
  check(view.data != nullptr, op, name, " is missing");
  check(view.batch == batch && view.time == time && view.heads == heads && view.dim == dim, op, name, " is [",
        view.batch, ", ", view.time, ", ", view.heads, ", ", view.dim, "]; must be [", batch, ", ", time, ", ", heads,
        ", ", dim, "]");
}

}  // namespace ovq::kernels
