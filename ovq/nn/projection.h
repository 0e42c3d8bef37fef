// Linear layer and embedding as in torch, computed by ops::linear; their errors name layer and tensor.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::nn {

// x [..., from] -> [..., to]
class ProjectionImpl : public torch::nn::LinearImpl {
 public:
  using LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(Projection);

// tokens [...] int64 or int32 -> [..., width]
class TokenEmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  using EmbeddingImpl::EmbeddingImpl;
  at::Tensor forward(const at::Tensor& tokens);
};
TORCH_MODULE(TokenEmbedding);

}  // namespace ovq::nn
