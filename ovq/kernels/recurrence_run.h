// What the recurrences share: checks, sequences, memory for states, and threads over sequences and heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/kernels/checks.h"
#include "ovq/kernels/memory/buffer.h"
#include "ovq/kernels/parallel.h"
#include "ovq/kernels/simd/recurrence_kernels.h"

namespace ovq::kernels::recurrence {

// Queries and keys [B, T, heads, dk], values [B, T, value_heads, dv]
struct Sizes {
  int64_t batch = 0, time = 0, heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};

// Each throws std::invalid_argument naming `op` and the argument.
Sizes check_queries_keys_values(const char* op, const View<const float>& q, const View<const float>& k,
                                const View<const float>& v);
void check_gate(const char* op, const char* name, const View<const float>& gate, const Sizes& sizes,
                bool optional = false);
std::vector<Piece> check_pieces(const char* op, const Sizes& sizes, std::span<const int64_t> cu_seqlens);

// Matrices of states at the chunk borders, for one head of each sequence.
int64_t border_count(std::span<const Piece> pieces);

inline int64_t saved_floats(std::span<const Piece> pieces, const Borders& borders) {
  return border_count(pieces) * borders.heads * borders.matrix();
}

// `borders` with the memory of `saved`, if there is any.
template <class T>
Borders check_borders(const char* op, std::span<const Piece> pieces, Borders borders, std::span<T> saved) {
  if (saved.data() == nullptr) return borders;
  const int64_t wanted = saved_floats(pieces, borders);
  check(static_cast<int64_t>(saved.size()) == wanted, op, "saved has ", saved.size(), " elements; must have ", wanted);
  borders.data = const_cast<float*>(saved.data());
  return borders;
}

// Scratch memory of one thread.
struct Scratch {
  Buffer<float> memory{Lifetime::scratch};
};

// body(piece, head, scratch) for each. `cost` is that of one token and head, in multiply-adds: little work stays on one
// thread. A head of a sequence is computed by one thread, so results do not depend on their number.
template <class Body>
void for_each_task(std::span<const Piece> pieces, int64_t heads, int64_t cost, int64_t scratch, const Body& body) {
  constexpr int64_t kWorthThreads = 1 << 19;
  int64_t tokens = 0;
  for (const Piece& piece : pieces) tokens += piece.sequence.length;
  const int threads = tokens * heads * cost < kWorthThreads ? 1 : max_threads();
  std::vector<Scratch> own(threads);
  parallel_for(static_cast<int64_t>(pieces.size()) * heads, threads, [&](int64_t task, int thread) {
    body(pieces[task / heads], task % heads, own[thread].memory.ensure(scratch));
  });
}

// Sums over sequences, in their order: totals[i] <- sum_s parts[s, i]
void add_up(std::span<const double> parts, std::span<float> totals);

}  // namespace ovq::kernels::recurrence
