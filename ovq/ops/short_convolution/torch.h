// Causal depthwise convolution over time, as the linear layers put it on queries, keys and values:
//   y_t = f(bias + sum_j weight[:, j] x_{t - width + 1 + j}),  zeros (or carried inputs) before the start
// with f the identity or silu.
// Cost: 2 T C width flops forward, twice that backward; reads and writes each element once.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

enum class Activation { none, silu };

struct ShortConvolutionInputs {
  at::Tensor x;       // [B, T, C]
  at::Tensor weight;  // [C, width]
  at::Tensor bias;    // [C], or undefined
  at::Tensor before;  // the width - 1 inputs before x, [B, width - 1, C]; undefined: zeros
  c10::optional<at::Tensor>
      cu_seqlens;  // sequences packed along time, each with zeros before it; not together with `before`
  Activation activation = Activation::none;
};

// -> [B, T, C]
at::Tensor short_convolution(const ShortConvolutionInputs& inputs);

// The width - 1 inputs before what follows x [B, T, C]: the last of `before` (undefined: zeros) and x. A copy.
at::Tensor inputs_after(const at::Tensor& x, const at::Tensor& before, int64_t width);

}  // namespace ovq::ops
