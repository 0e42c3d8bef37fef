// Shared by the recurrences: checks, sequences, memory for states, and threads over sequences and heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ovq/core/buffer.h"
#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/recurrence/kernel.h"

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

// The number of state matrices at the chunk borders, for one head of each sequence.
int64_t border_count(std::span<const Piece> pieces);

inline int64_t saved_floats(std::span<const Piece> pieces, const Borders& borders) {
  return border_count(pieces) * borders.heads * borders.matrix();
}

// `borders` in the memory of `saved`, if there is any.
template <class T>
Borders check_borders(const char* op, std::span<const Piece> pieces, Borders borders, std::span<T> saved) {
  if (saved.data() == nullptr) return borders;
  const int64_t wanted = saved_floats(pieces, borders);
  check(static_cast<int64_t>(saved.size()) == wanted, op, "saved has ", saved.size(), " elements; must have ", wanted);
  borders.data = const_cast<float*>(saved.data());
  borders.past_caches = wanted > kCachedFloats && is_aligned(borders.data);
  return borders;
}

// The scratch memory of one thread.
struct Scratch {
  Buffer<float> memory{Lifetime::scratch};
};

// The number of heads whose states, of `state_floats` each, fit in L2 beside the other data; at least 1.
int64_t heads_that_fit(int64_t state_floats);

// The number of heads (at most `most` or a group; `heads` is a multiple of `group`) that a thread should process
// together: as many as possible without adding work to the busiest thread. The sequences have about equal length.
int64_t heads_together(int64_t heads, int64_t group, int64_t most, int64_t sequences, int threads);

// The work: `heads` of every piece, in whole groups. A thread takes at most `most` heads at a time, or one group if
// that is larger.
struct Work {
  int64_t heads = 0, group = 1, most = 1;
  int64_t cost = 0;  // multiply-adds of a token and head; little work stays on one thread
};

// Calls body(piece, heads, scratch) for all work, with scratch_of(heads) floats of memory. Each head is computed by one
// thread, independently of other heads, so the results do not depend on their number.
template <class ScratchOf, class Body>
void for_each_task(std::span<const Piece> pieces, const Work& work, const ScratchOf& scratch_of, const Body& body) {
  constexpr int64_t kWorthThreads = 1 << 19;
  int64_t tokens = 0, longest = 1;
  for (const Piece& piece : pieces) {
    tokens += piece.sequence.length;
    longest = std::max(longest, piece.sequence.length);
  }
  const int threads = tokens * work.heads * work.cost < kWorthThreads ? 1 : max_threads();
  const int64_t together =
      heads_together(work.heads, work.group, work.most, std::max<int64_t>(1, tokens / longest), threads);
  const int64_t parts = (work.heads + together - 1) / together, scratch = scratch_of(together);
  std::vector<Scratch> own(threads);
  parallel_for(static_cast<int64_t>(pieces.size()) * parts, threads, [&](int64_t task, int thread) {
    const int64_t first = task % parts * together;
    body(pieces[task / parts], HeadRange{first, std::min(together, work.heads - first)},
         own[thread].memory.ensure(scratch));
  });
}

// Sums over sequences, in their order: totals[i] <- sum_s parts[s, i]
void add_up(std::span<const double> parts, std::span<float> totals);

}  // namespace ovq::kernels::recurrence
