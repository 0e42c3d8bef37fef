#include "ovq/ops/recurrence/run.h"

#include <limits>

namespace ovq::kernels::recurrence {

Sizes check_queries_keys_values(const char* op, const View<const float>& q, const View<const float>& k,
                                const View<const float>& v) {
  check(q.batch >= 0 && q.time >= 0, op, "q is [", q.batch, ", ", q.time, ", ...]; sizes must be at least 0");
  check(q.heads >= 1 && q.dim >= 1, op, "q has ", q.heads, " heads of ", q.dim, "; must be at least 1 of 1");
  check(v.heads >= 1 && v.dim >= 1, op, "v has ", v.heads, " heads of ", v.dim, "; must be at least 1 of 1");
  check(v.heads % q.heads == 0, op, "q has ", q.heads, " heads; must divide v's ", v.heads);
  check_shape(op, "q", q, q.batch, q.time, q.heads, q.dim);
  check_shape(op, "k", k, q.batch, q.time, q.heads, q.dim);
  check_shape(op, "v", v, q.batch, q.time, v.heads, v.dim);
  return {
      .batch = q.batch, .time = q.time, .heads = q.heads, .value_heads = v.heads, .key_dim = q.dim, .value_dim = v.dim};
}

void check_gate(const char* op, const char* name, const View<const float>& gate, const Sizes& sizes, bool optional) {
  check_shape(op, name, gate, sizes.batch, sizes.time, sizes.value_heads, 1, optional);
}

std::vector<Piece> check_pieces(const char* op, const Sizes& sizes, std::span<const int64_t> cu_seqlens) {
  std::vector<Piece> pieces;
  int64_t border = 0;
  for (const Sequence& sequence : check_sequences(op, sizes.batch, sizes.time, cu_seqlens)) {
    const auto& [b, first, length] = sequence;
    pieces.push_back({{b, first, length}, static_cast<int64_t>(pieces.size()), border});
    border += chunks_of(sequence.length) + 1;
  }
  return pieces;
}

int64_t border_count(std::span<const Piece> pieces) {
  return pieces.empty() ? 0 : pieces.back().first_border + chunks_of(pieces.back().sequence.length) + 1;
}

int64_t heads_that_fit(int64_t state_floats) {
  constexpr int64_t kStates = 1 << 16;  // floats: a quarter of the L2 cache of most server cores
  return std::max<int64_t>(1, kStates / std::max<int64_t>(1, state_floats));
}

int64_t heads_together(int64_t heads, int64_t group, int64_t most, int64_t sequences, int threads) {
  int64_t best = group, least_work = std::numeric_limits<int64_t>::max();
  for (int64_t together = group; together <= std::max(group, std::min(most, heads)); together += group) {
    const int64_t tasks = (heads + together - 1) / together * sequences;
    const int64_t work = (tasks + threads - 1) / threads * together;  // of the thread with the most work
    if (work > least_work) continue;
    best = together;
    least_work = work;
  }
  return best;
}

void add_up(std::span<const double> parts, std::span<float> totals) {
  for (size_t i = 0; i < totals.size(); ++i) {
    double sum = 0;
    for (size_t at = i; at < parts.size(); at += totals.size()) sum += parts[at];
    totals[i] = static_cast<float>(sum);
  }
}

}  // namespace ovq::kernels::recurrence
