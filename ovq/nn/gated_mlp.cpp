#include "ovq/nn/gated_mlp.h"

#include "ovq/base/error.h"
#include "ovq/nn/parameters.h"
#include "ovq/ops/gated_mlp/torch.h"

namespace ovq::nn {

GatedMlpImpl::GatedMlpImpl(int64_t width, int64_t inner) {
  gate_proj = register_module("gate_proj", make_projection(width, inner));
  up_proj = register_module("up_proj", make_projection(width, inner));
  down_proj = register_module("down_proj", make_projection(inner, width));
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& x) {
  return ops::gated_mlp({.x = x, .gate = gate_proj->weight, .up = up_proj->weight, .down = down_proj->weight});
}

at::Tensor GatedMlpImpl::add_to(const at::Tensor& x, RMSNorm& norm) {
  check(norm->groups() == 1, "gated_mlp", "the norm has ", norm->groups(), " groups; must have 1");
  return ops::gated_mlp({.x = x,
                         .norm = norm->weight,
                         .gate = gate_proj->weight,
                         .up = up_proj->weight,
                         .down = down_proj->weight,
                         .eps = norm->eps(),
                         .residual = true});
}

}  // namespace ovq::nn
