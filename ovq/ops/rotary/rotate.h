// Rotary position embedding of one row, pairs (i, i + dim / 2).
#pragma once

#include <cstdint>

namespace ovq::kernels::detail {

// to <- from rotated by `angles`, dim / 2 cosines and then dim / 2 sines; direction -1 rotates back.
template <class T>
inline void rotate(const T* from, const T* angles, int64_t dim, T direction, T* to) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const T cosine = angles[i], sine = direction * angles[half + i];
    const T x = from[i], y = from[half + i];
    to[i] = x * cosine - y * sine;
    to[half + i] = x * sine + y * cosine;
  }
}

}  // namespace ovq::kernels::detail
