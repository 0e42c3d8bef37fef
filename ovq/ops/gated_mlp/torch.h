// The gated MLP of a block, with the norm before it and the residual around it:
//   y = x + W_down (silu(W_gate n) * W_up n),  n = rms_norm(x) w
// Two matrix products forward, gate and up as one, and four backward, with one pass over memory between two of them.
// For backward it keeps n, the norms and [W_gate n | W_up n]. float32, bfloat16 and half on the CPU, computed in
// float32; without gradients the matrices may be bfloat16 where x is float32.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

struct GatedMlpInputs {
  at::Tensor x;           // [..., C]
  at::Tensor norm;        // w [C]; undefined: n = x
  at::Tensor gate, up;    // [I, C]
  at::Tensor down;        // [C, I]
  double eps = 1e-6;      // of the norm
  bool residual = false;  // whether x is added
};

// [..., C]
at::Tensor gated_mlp(const GatedMlpInputs& inputs);

}  // namespace ovq::ops
