// Checks of arguments, shared by the kernels: each throws std::invalid_argument that names the argument.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/kernels/ovq_options.h"
#include "ovq/kernels/sequences.h"
#include "ovq/kernels/view.h"

namespace ovq::kernels {

// The largest |beta| and weight accepted. Below them float32 can hold logits and sums for unit queries and keys and
// values around one.
inline constexpr float kLargestBeta = 1e35f, kLargestWeight = 1e30f;

// q [B, Tq, Hq, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], beta [Hq]
void check_inputs(const char* op, const View<const float>& q, const View<const float>& k, const View<const float>& v,
                  std::span<const float> beta);

void check_options(const char* op, const OvqOptions& options, int64_t key_dim);

// Every element positive, at most kLargestWeight.
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
