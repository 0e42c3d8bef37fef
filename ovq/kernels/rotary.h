// Rotary position embedding, pairs (i, i + dim / 2): angle position * base^(-2 i / dim).
#pragma once

#include <cstdint>
#include <memory>

#include "ovq/kernels/buffer.h"

namespace ovq::kernels::detail {

// Row p - 1 belongs to position p = 1 ... positions: dim / 2 cosines, then dim / 2 sines. Recently used tables are kept.
std::shared_ptr<const Buffer<float>> rotary_table(int64_t positions, int64_t dim, float base);

// to <- from rotated by a row of the table; direction -1 rotates back.
inline void rotate(const float* from, const float* row, int64_t dim, float direction, float* to) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = row[i], sine = direction * row[half + i];
    const float x = from[i], y = from[half + i];
    to[i] = x * cosine - y * sine;
    to[half + i] = x * sine + y * cosine;
  }
}

}  // namespace ovq::kernels::detail
