// y = W_down (silu(W_gate x) * W_up x), no bias.
#pragma once

#include "ovq/nn/projection.h"

namespace ovq::nn {

class GatedMlpImpl : public torch::nn::Module {
 public:
  GatedMlpImpl(int64_t width, int64_t inner);
  at::Tensor forward(const at::Tensor& x);

  Projection gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(GatedMlp);

}  // namespace ovq::nn
