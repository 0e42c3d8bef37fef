// Rotary position embedding, pairs (i, i + dim / 2) of a row at position p: angle p base^(-2 i / dim).
// Angles are tables of a row per position: dim / 2 cosines, then dim / 2 sines.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ovq/core/buffer.h"
#include "ovq/core/view.h"
#include "ovq/ops/rotary/rotate.h"

namespace ovq::kernels {

// angles [count, dim] of the positions first_position ... first_position + count - 1; computed in double
void rotary_angles(int64_t first_position, int64_t count, int64_t dim, double base, std::span<float> angles);

// y [B, T, H, D] <- x, token t turned by row t of angles [T, D]; direction -1 turns back. Throws std::invalid_argument
// naming the argument that is wrong.
void rotary(const View<const float>& x, std::span<const float> angles, float direction, const View<float>& y);

}  // namespace ovq::kernels

namespace ovq::kernels::detail {

// The angles of a window of two chunks of length L.
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
