// The plain loops of ovq/ops/*/reference.h on tensors, for the recurrences that `ovq bench ops` checks.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace ovq::bench {

using Tensors = std::vector<at::Tensor>;

// From float inputs, in the order of the ops' aggregates in ovq/ops/*/torch.h: the output, then the gradients of
// sum(o * d_o) by each input, computed in float or double.
struct PlainLoops {
  Tensors (*in_float)(const Tensors& inputs, const at::Tensor& d_o);
  Tensors (*in_double)(const Tensors& inputs, const at::Tensor& d_o);
};

extern const PlainLoops gated_delta_rule_loops;   // q, k, v, g, beta
extern const PlainLoops ssd_loops;                // x, dt, a, b, c, d
extern const PlainLoops mesa_loops;               // q, k, v, g, beta, lambda
extern const PlainLoops linear_attention_loops;   // q, k, v, g
extern const PlainLoops short_convolution_loops;  // x, weight; with silu

}  // namespace ovq::bench
