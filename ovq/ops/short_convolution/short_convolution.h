// Causal depthwise convolution over time, as applied by the linear layers to queries, keys and values:
//   y_t = f(bias + sum_j taps_j x_{t - width + 1 + j}),  zeros or carried inputs before the start
// with f the identity or silu(z) = z / (1 + e^-z). Each channel has its own taps. Multiply-adds per element: width
// forward, three times that backward (a third of it to recompute the input of f).
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

struct ShortConvolutionInputs {
  View<const float> x;          // [B, T, 1, C]
  std::span<const float> taps;  // [width, C]
  std::span<const float> bias;  // [C]; empty: zeros
  View<const float> before;     // the width - 1 inputs before x, [B, width - 1, 1, C]; absent: zeros
  bool silu = false;
  // Packed sequences, each with zeros before it; not together with `before`. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
};

struct ShortConvolutionGradients {
  View<float> d_x;          // overwritten, as are the others
  std::span<float> d_taps;  // [width, C]
  std::span<float> d_bias;  // [C]; empty: not wanted
  View<float> d_before;     // absent: not wanted
};

// Each throws std::invalid_argument naming the argument that is wrong.
void short_convolution_forward(const ShortConvolutionInputs& inputs, View<float> y);

// Gradients of sum(y * d_y).
void short_convolution_backward(const ShortConvolutionInputs& inputs, View<const float> d_y,
                                const ShortConvolutionGradients& gradients);

}  // namespace ovq::kernels
