// A layer's operations on rows between its matrix products, compiled for each instruction set: norms, gates, and the
// steps from a projection to queries, keys and values. Everything above it (which rows, which thread) is plain C++.
#pragma once

#include <cstdint>

#include "ovq/core/bfloat16.h"

namespace ovq::kernels {

// How a token's row is combined with that of the previous token; at the start of a sequence the token's own row
// replaces it.
enum class Shift {
  none,
  previous,  // the row before
  mean,      // share * the row before + (1 - share) * its own
};

}  // namespace ovq::kernels

namespace ovq::kernels::detail {

// y = x r weight, r = (sum(x^2) / divisor + eps)^(-1/2), of each row; rows take the rows of the weight in turn.
struct NormRows {
  const float* x = nullptr;       // [rows][width]
  const float* weight = nullptr;  // [groups][width]; nullptr: ones
  int64_t rows = 0, width = 0, groups = 1;
  float divisor = 1, eps = 0;
};
struct NormRowsBackward {
  const float* d_y = nullptr;
  const float* r = nullptr;
  const float* add = nullptr;  // [rows][width], added to d_x; nullptr: nothing
  float* d_x = nullptr;
  float* d_weight = nullptr;  // [groups][width], written
};
// Of rows of norm one
struct UnitRowsBackward {
  const float *d_y = nullptr, *y = nullptr, *r = nullptr;
  int64_t rows = 0, width = 0;
};

// Steps applied to the projected rows of one sequence: a short convolution, silu, norm one per head, the shift, a
// rotation; each is optional, in this order.
struct HeadRows {
  const float* y = nullptr;  // [time][channels], `y_stride` apart
  int64_t y_stride = 0, time = 0, channels = 0;
  const float* taps = nullptr;  // [taps_count][channels], `taps_stride` apart, the token's own last; nullptr: none
  int64_t taps_stride = 0, taps_count = 0;
  const float* taps_bias = nullptr;  // [channels]; nullptr: zeros
  // Of the tokens before the first one: rows of y, the latest last, [taps_count - 1][channels], `before_stride` apart
  // (nullptr: zeros), and the row that the shift reads (nullptr: the first token's own).
  const float* before = nullptr;
  int64_t before_stride = 0;
  const float* row_before = nullptr;
  bool silu = false;
  bool unit = false;
  float eps = 0;                  // of the norm
  int64_t head_dim = 0;           // divides channels
  const float* angles = nullptr;  // [time][head_dim]: cosines, then sines; nullptr: no rotation
  Shift shift = Shift::none;
  float share = 0;
};
struct HeadRowsBackward {
  const float* d_out = nullptr;  // [time][channels], `out_stride` apart
  int64_t out_stride = 0;
  float* d_y = nullptr;     // as y
  float* d_taps = nullptr;  // [taps_count][channels] written, `d_taps_stride` apart; nullptr without taps
  int64_t d_taps_stride = 0;
  float* d_taps_bias = nullptr;   // [channels] written; nullptr: not wanted
  double d_share = 0;             // written
  const float* d_last = nullptr;  // of the last token's row before the shift; nullptr: zeros
  float* d_before = nullptr;      // as before, written; nullptr: not wanted
  int64_t d_before_stride = 0;
  float* d_row_before = nullptr;  // [channels] written; nullptr: not wanted
};

// A matrix b[depth][columns] to be packed: element (k, column) is b[k * depth_stride + column * column_stride].
struct PackedMatrix {
  const float* b = nullptr;
  int64_t depth_stride = 0, column_stride = 0, depth = 0, columns = 0;
};
// c = a b + add, of rows a [rows][depth] and panels of b
struct RowsProduct {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* panels = nullptr;
  const float* add = nullptr;  // [rows][columns], `add_stride` apart; nullptr: nothing
  int64_t add_stride = 0, rows = 0, columns = 0, depth = 0;
};
// c = a^T b, of a [depth][rows] and b [depth][columns]
struct OuterProduct {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0, rows = 0, columns = 0, depth = 0;
};
// y[r][o] <- w[o] . x[r] + add[r][o], where w is `wide` or `narrow` and the other is null. A row of x has the same
// result in any block, bit for bit.
struct MatvecBlock {
  const float* wide = nullptr;
  const Bfloat16* narrow = nullptr;
  int64_t w_stride = 0, outputs = 0, depth = 0;
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  const float* add = nullptr;  // nullptr: nothing
  int64_t add_stride = 0;
};
inline constexpr int64_t kOuterDepth = 128;  // rows of b packed at a time
inline constexpr int64_t kWidestPanel = 64;  // maximum columns of a panel

// The floats of scratch that `heads` and `heads_backward` need.
int64_t head_rows_scratch(const HeadRows& in);

struct RowKernels {
  const char* isa;
  bool fast_products;  // whether the products below are faster than a library's
  // panels: depth * (columns rounded up to kWidestPanel) floats are enough
  void (*pack)(const PackedMatrix& in, float* panels);
  void (*product)(const RowsProduct& in, float* c, int64_t c_stride);
  // scratch: kOuterDepth * kWidestPanel floats
  void (*outer_product)(const OuterProduct& in, float* scratch, float* c, int64_t c_stride);
  void (*matvec)(const MatvecBlock& in, float* y, int64_t y_stride);
  void (*widen)(const Bfloat16* from, int64_t count, float* to);
  void (*norm)(const NormRows& in, float* y, float* r);
  void (*norm_backward)(const NormRows& in, const NormRowsBackward& out);  // needs a weight
  void (*unit_backward)(const UnitRowsBackward& in, float* d_x);
  // a = silu(gate) * up, with the rows [gate | up] of 2 * width
  void (*gate)(const float* gate_up, int64_t rows, int64_t width, float* a);
  // d_a is replaced by a.
  void (*gate_backward)(const float* gate_up, int64_t rows, int64_t width, float* d_a, float* d_gate_up);
  // last: the last token's row before the shift; nullptr: not wanted
  void (*heads)(const HeadRows& in, float* scratch, float* out, int64_t out_stride, float* last);
  void (*heads_backward)(const HeadRows& in, float* scratch, HeadRowsBackward& out);
};

// The kernels of the instruction set that isa() names.
const RowKernels& row_kernels();

}  // namespace ovq::kernels::detail
