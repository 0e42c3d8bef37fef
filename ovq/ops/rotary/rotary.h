// Rotary position embedding, pairs (i, i + dim / 2): angle position * base^(-2 i / dim).
#pragma once

#include <cstdint>
#include <memory>

#include "ovq/core/buffer.h"
#include "ovq/ops/rotary/rotate.h"

namespace ovq::kernels::detail {

// Cosines and sines for a window of two chunks of length L: a row per position, dim / 2 cosines, then dim / 2 sines.
struct RotaryTable {
  int64_t chunk = 0, dim = 0;
  Buffer<float> previous;  // positions 1 ... L
  Buffer<float> current;   // positions L + 1 ... 2 L

  const float* previous_row(int64_t row) const { return previous.data() + row * dim; }
  const float* current_row(int64_t row) const { return current.data() + row * dim; }
};

// A table for sequences of up to `tokens` tokens. Recently used tables are cached.
std::shared_ptr<const RotaryTable> rotary_table(int64_t chunk, int64_t dim, float base, int64_t tokens);

}  // namespace ovq::kernels::detail
