// Which tokens of a chunk join which centroid, and how that changes a row and its count.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "ovq/core/small_rows.h"
#include "ovq/ops/ovq_attention/dictionary.h"

namespace ovq::kernels::detail {

inline constexpr int32_t kNone = -1;

// The members of each centroid as linked lists in order of position, without founders, and the founders' positions.
struct Members {
  int32_t* first;    // [size + new_count]
  int32_t* next;     // [chunk]
  int32_t* founder;  // [new_count]

  Members(const ChunkWrite& write, int64_t size, WriteScratch& scratch) {
    const int64_t chunk = write.options->chunk;
    const int64_t centroids = size + write.new_count;
    if (scratch.first_member.size() < centroids) {
      scratch.first_member = Buffer<int32_t>(centroids + centroids / 4 + chunk);
      std::fill_n(scratch.first_member.data(), scratch.first_member.size(), kNone);
    }
    first = scratch.first_member.data();
    next = scratch.next_member.ensure(chunk);
    founder = scratch.founder.ensure(chunk);
    for (int64_t p = chunk - 1; p >= 0; --p) {
      const int32_t a = write.assignment[p];
      if (a < 0) {
        founder[~a - size] = static_cast<int32_t>(p);
      } else {
        next[p] = first[a];
        first[a] = static_cast<int32_t>(p);
      }
    }
  }

  // f(centroid, first member) for each centroid with members, in the order of their first members; clears `first`
  // again.
  template <class F>
  void for_each(const ChunkWrite& write, const F& f) const {
    for (int64_t p = 0; p < write.options->chunk; ++p) {
      const int32_t a = write.assignment[p];
      if (a < 0 || first[a] != p) continue;
      f(a, static_cast<int32_t>(p));
      first[a] = kNone;
    }
  }

  int64_t count(int32_t member) const {
    int64_t members = 0;
    for (; member != kNone; member = next[member]) ++members;
    return members;
  }
};

// row <- row + rate * sum over members of w (x - row)
template <class WeightOf>
void update_row(float* row, const float* tokens, int64_t stride, const Members& members, int32_t member, float rate,
                int64_t dim, float* sum, const WeightOf& weight_of) {
  const float* first = tokens + member * stride;
  const float first_weight = weight_of(member);
  member = members.next[member];
  if (member == kNone) {  // the most frequent case
    const float weight = first_weight * rate;
    return for_row(dim, [=](int64_t i) { row[i] += weight * (first[i] - row[i]); });
  }
  for_row(dim, [=](int64_t i) { sum[i] = first_weight * (first[i] - row[i]); });
  for (; member != kNone; member = members.next[member]) {
    const float* x = tokens + member * stride;
    const float weight = weight_of(member);
    for_row(dim, [=](int64_t i) { sum[i] += weight * (x[i] - row[i]); });
  }
  for_row(dim, [=](int64_t i) { row[i] += rate * sum[i]; });
}

// Small counts use a table: there is one logarithm per token, and heads of 16 have little other work.
inline float log2_of_count(int64_t count) {
  static const auto table = [] {
    std::array<float, 1024> logarithms{};
    for (size_t i = 0; i < logarithms.size(); ++i) logarithms[i] = std::log2(static_cast<float>(i));
    return logarithms;
  }();
  return count < static_cast<int64_t>(table.size()) ? table[count] : std::log2(static_cast<float>(count));
}

inline void set_count(const OvqHead& rows, int64_t centroid, int64_t count) {
  rows.counts[centroid] = count;
  rows.log_counts[centroid] = log2_of_count(count);
}

inline void set_weight(const OvqHead& rows, int64_t row, float weight) {
  rows.weights[row] = weight;
  rows.log_counts[row] = std::log2(weight);
}

// A centroid's count as a float, with or without weights.
inline float count_of(const OvqHead& rows, int64_t centroid) {
  return rows.weights != nullptr ? rows.weights[centroid] : static_cast<float>(rows.counts[centroid]);
}

}  // namespace ovq::kernels::detail
