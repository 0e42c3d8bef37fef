#include "ovq/nn/gated_mlp.h"

#include "ovq/nn/parameters.h"
#include "ovq/ops/gated_mlp/torch.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/pointwise.h"

namespace ovq::nn {

GatedMlpImpl::GatedMlpImpl(int64_t width, int64_t inner) {
  gate_proj = register_module("gate_proj", make_projection(width, inner));
  up_proj = register_module("up_proj", make_projection(width, inner));
  down_proj = register_module("down_proj", make_projection(inner, width));
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& x) {
  const ops::GatedMlpInputs inputs{.x = x, .gate = gate_proj->weight, .up = up_proj->weight, .down = down_proj->weight};
  if (ops::has_row_kernels({x}) && ops::has_stored_kernels({inputs.gate, inputs.up, inputs.down})) {
    return ops::gated_mlp(inputs);
  }
  return down_proj(ops::silu(gate_proj(x)) * up_proj(x));
}

at::Tensor GatedMlpImpl::add_to(const at::Tensor& x, RMSNorm& norm) {
  const ops::GatedMlpInputs inputs{.x = x,
                                   .norm = norm->weight,
                                   .gate = gate_proj->weight,
                                   .up = up_proj->weight,
                                   .down = down_proj->weight,
                                   .eps = norm->eps(),
                                   .residual = true};
  if (norm->groups() == 1 && ops::has_row_kernels({x, inputs.norm}) &&
      ops::has_stored_kernels({inputs.gate, inputs.up, inputs.down})) {
    return ops::gated_mlp(inputs);
  }
  return x + forward(norm(x));
}

}  // namespace ovq::nn
