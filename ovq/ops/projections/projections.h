// The rows of a matrix product as queries, keys and values: to each part of their channels, one after the other and
// each optional,
//   c_t = bias + sum_j taps_j y_{t - width + 1 + j}     short convolution
//   z_t = c_t sigmoid(c_t)                              silu
//   z_t <- z_t (|z_t|^2 + eps)^(-1/2)                   norm one per head
//   o_t = z_{t-1}  or  share z_{t-1} + (1 - share) z_t  shift; at the start of a sequence z_t takes the place of
//   z_{t-1} o_t <- o_t turned by the angles of its position     rotation
// Before the first token are zeros and nothing to shift, or what an earlier call carried on. One pass over memory
// forward, reading y and writing o; backward computes the rest again from y.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels {

// Channels of y, in its order.
struct ProjectionPart {
  int64_t channels = 0;
  int64_t head_dim = 0;              // divides channels; 0: one head
  std::span<const float> taps;       // [channels, width], the token's own last; empty: no convolution
  std::span<const float> taps_bias;  // [channels]; empty: zeros
  bool silu = false;
  std::optional<float> unit_eps = {};  // of the norm; absent: none
  Shift shift = Shift::none;
  float share = 0;                // of Shift::mean
  std::span<const float> angles;  // [T, head_dim]: cosines, then sines; empty: no rotation
  // What is before the first token, not together with packed sequences:
  std::span<const float> inputs_before;  // y of the last tokens, [B, width - 1, channels]; empty: zeros
  std::span<const float> row_before;     // z of the last token, [B, channels], for a shift; empty: a sequence starts

  int64_t width() const { return channels == 0 ? 0 : static_cast<int64_t>(taps.size()) / channels; }
};

struct ProjectionRows {
  std::span<const float> y;  // [B, T, channels of all parts]
  int64_t batch = 0, time = 0;
  std::span<const ProjectionPart> parts;
  std::span<const int64_t> cu_seqlens;  // packed sequences; empty: none
};

// Of one part; overwritten.
struct ProjectionOutputs {
  std::span<float> o;             // [B, T, channels]
  std::span<float> inputs_after;  // what the next call has as inputs_before; empty: not wanted
  std::span<float> row_after;     // the same for row_before; empty: not wanted
};
// Throws, as its backward, std::invalid_argument naming the argument that is wrong.
void projection_rows(const ProjectionRows& in, std::span<const ProjectionOutputs> outputs);

struct ProjectionGradients {
  std::span<const float> d_o;
  std::span<const float> d_inputs_after, d_row_after;  // empty: zeros
  // Overwritten:
  std::span<float> d_taps;       // [sequences, width, channels], whose sum over sequences is the gradient
  std::span<float> d_taps_bias;  // [sequences, channels], the same; empty: not wanted
  std::span<float> d_inputs_before, d_row_before;  // empty: not wanted
  double d_share = 0;
};
// d_y as y
void projection_rows_backward(const ProjectionRows& in, std::span<ProjectionGradients> gradients, std::span<float> d_y);

}  // namespace ovq::kernels
