// ops::rms_norm as a layer: y = x / rms(x) * weight over the last dimension, or over each of `groups` equal parts of
// it.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::nn {

class RMSNormImpl : public torch::nn::Module {
 public:
  explicit RMSNormImpl(int64_t size, double eps = 1e-6, int64_t groups = 1);
  at::Tensor forward(const at::Tensor& x);

  double eps() const { return eps_; }
  int64_t groups() const { return groups_; }

  at::Tensor weight;  // [C], ones

 private:
  double eps_;
  int64_t groups_;
};
TORCH_MODULE(RMSNorm);

}  // namespace ovq::nn
