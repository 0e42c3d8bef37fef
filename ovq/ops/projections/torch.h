// What a mixer reads of x, as one op: [y_1 | y_2 | ...] = x [W_1; W_2; ...]^T + biases, one matrix product, and behind
// it for each of its parts a short convolution, silu, norm one per head, the shift by a token and a rotation, each
// optional, in this order, in one pass over memory (ovq/ops/projections/projections.h has the formulas). Backward keeps
// x and the product, and computes the rest again. float32, bfloat16 and half on the CPU, computed in float32; without
// gradients the weights may be bfloat16 where x is float32.
#pragma once

#include <vector>

#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// Channels of the product, in its order.
struct ProjectedPart {
  int64_t channels = 0;
  int64_t head_dim = 0;  // 0: one head
  at::Tensor taps;       // [channels, width], as in short_convolution; undefined: none
  at::Tensor taps_bias;  // [channels]; undefined: none
  bool silu = false;
  c10::optional<double> unit_eps = {};  // as in l2_norm; absent: no norm
  kernels::Shift shift = kernels::Shift::none;
  at::Tensor share;   // [], of Shift::mean
  at::Tensor angles;  // rotary_table [T, head_dim]; undefined: no rotation
};

struct ProjectionsInputs {
  at::Tensor x;                         // [B, T, C]
  std::vector<at::Tensor> weights;      // [O, C] each; their rows and the parts' channels are the same in all
  std::vector<at::Tensor> biases = {};  // one per weight, undefined: none; or empty
  std::vector<ProjectedPart> parts;
  c10::optional<at::Tensor> cu_seqlens = {};  // packed sequences: convolution and shift restart at each of them
};

// -> [B, T, channels] of each part
std::vector<at::Tensor> projections(const ProjectionsInputs& inputs);

// What a part's convolution and shift need of the tokens before x, in float32.
struct CarriedRows {
  at::Tensor inputs;  // of the convolution, [B, width - 1, channels]; undefined: zeros
  at::Tensor row;     // of the last token, before the shift, [B, 1, channels]; undefined: a sequence starts
};

// The same behind the tokens that `carried`, one per part, comes from; it becomes that behind x, in new tensors.
// Differentiable through both. Not with packed sequences.
std::vector<at::Tensor> projections(const ProjectionsInputs& inputs, std::vector<CarriedRows>& carried);

}  // namespace ovq::ops
