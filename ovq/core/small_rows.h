// Operations on one row of a head, which may be as short as 16 floats, in blocks that compile to a few vector
// instructions. Calling memcpy, or a loop that first checks whether its rows overlap, costs more than the work itself.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ovq::kernels::detail {

inline constexpr int64_t kRowBlock = 16;

// to <- from; the rows do not overlap
inline void copy_row(const float* from, int64_t dim, float* to) {
  int64_t i = 0;
  for (; i + kRowBlock <= dim; i += kRowBlock) std::memcpy(to + i, from + i, kRowBlock * sizeof(float));
  if (i < dim) std::memcpy(to + i, from + i, (dim - i) * sizeof(float));
}

// Prefetches a row that will be read soon.
inline void fetch_row(const float* row, int64_t dim) {
  for (int64_t i = 0; i < dim; i += kRowBlock) __builtin_prefetch(row + i);
}

// f(i) for every element i of a row. It may only access element i of rows that are identical or do not overlap. Without
// the pragma the compiler spills to the stack or compares addresses first.
template <class F>
inline void for_row(int64_t dim, const F& f) {
  int64_t i = 0;
  for (; i + kRowBlock <= dim; i += kRowBlock) {
#pragma GCC ivdep
    for (int64_t j = i; j < i + kRowBlock; ++j) f(j);
  }
  for (; i < dim; ++i) f(i);
}

inline float norm_of(const float* row, int64_t dim) {
  double squares = 0.0;
  for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * row[i];
  return static_cast<float>(std::sqrt(squares));
}

}  // namespace ovq::kernels::detail
