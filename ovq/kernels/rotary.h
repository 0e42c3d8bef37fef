// Rotary position embedding, pairs (i, i + dim / 2): angle position * base^(-2 i / dim).
#pragma once

#include <cstdint>
#include <memory>

#include "ovq/kernels/buffer.h"

namespace ovq::kernels::detail {

// Cosines and sines for a window of two chunks of length L: a row per position, dim / 2 cosines, then dim / 2 sines.
struct RotaryTable {
  int64_t chunk = 0, dim = 0;
  Buffer<float> previous;  // positions 1 ... L
  Buffer<float> current;   // positions L + 1 ... 2 L

  const float* previous_row(int64_t row) const { return previous.data() + row * dim; }
  const float* current_row(int64_t row) const { return current.data() + row * dim; }
};

// A table for sequences of up to `tokens` tokens. Recently used ones are kept.
std::shared_ptr<const RotaryTable> rotary_table(int64_t chunk, int64_t dim, float base, int64_t tokens);

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
