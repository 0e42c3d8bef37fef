// A few rows times matrices, as in decode:
//   y_r = [W_1 x_r | W_2 x_r | ...] + add_r,   or gated   y_r = silu(W_1 x_r) * (W_2 x_r)
// with W [outputs, depth] as linear layers store it, in float32 or bfloat16; computed in float32. Bound by memory:
// every weight is read once, in order, and multiplied with all rows while it is in a register or in the first cache.
// FLOPs: 2 * rows * depth * outputs; bytes: depth * outputs * 4, or * 2.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/bfloat16.h"

namespace ovq::kernels {

// Rows up to which this is faster than a product that packs its operands.
inline constexpr int64_t kFewRowsAtMost = 8;

// [outputs, depth], rows `stride` elements apart: `wide` or `narrow`, the other is null.
struct StoredMatrix {
  const float* wide = nullptr;
  const Bfloat16* narrow = nullptr;
  int64_t outputs = 0, stride = 0;
};

struct MatvecInputs {
  const float* x = nullptr;  // [rows, depth], rows `x_stride` apart
  int64_t x_stride = 0, rows = 0, depth = 0;
  std::span<const StoredMatrix> weights;
  const float* add = nullptr;  // [rows, outputs of all weights]; null: nothing
  int64_t add_stride = 0;
  bool gated = false;  // two weights of equal size, and nothing to add
};

// Overwrites y [rows, outputs of all weights, or of one if gated], with rows `y_stride` apart. y must not overlap x,
// but may be `add`. The result of a row is the same, bit for bit, for any number of threads and whatever rows are
// beside it. Throws std::invalid_argument naming the wrong argument.
void matvec(const MatvecInputs& inputs, float* y, int64_t y_stride);

}  // namespace ovq::kernels
