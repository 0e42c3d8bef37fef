// y = W_down (silu(W_gate x) * W_up x), no bias.
#pragma once

#include "ovq/nn/projection.h"
#include "ovq/nn/rms_norm.h"

namespace ovq::nn {

class GatedMlpImpl : public torch::nn::Module {
 public:
  GatedMlpImpl(int64_t width, int64_t inner);
  at::Tensor forward(const at::Tensor& x);
  // x + forward(norm(x)), as one op; of a norm without groups
  at::Tensor add_to(const at::Tensor& x, RMSNorm& norm);

  Projection gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(GatedMlp);

}  // namespace ovq::nn
