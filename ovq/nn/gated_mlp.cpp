#include "ovq/nn/gated_mlp.h"

#include "ovq/nn/parameters.h"
#include "ovq/nn/replaced.h"

namespace ovq::nn {

GatedMlpImpl::GatedMlpImpl(int64_t width, int64_t inner) {
  gate_proj = register_module("gate_proj", make_projection(width, inner));
  up_proj = register_module("up_proj", make_projection(width, inner));
  down_proj = register_module("down_proj", make_projection(inner, width));
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& x) {
  if (const PartCall* call = call_of(*this)) return (*call)(x, {}, {});
  return down_proj(at::silu(gate_proj(x)) * up_proj(x));
}

}  // namespace ovq::nn
