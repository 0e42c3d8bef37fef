#include "ovq/nn/projection.h"

#include "ovq/base/error.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::nn {

namespace {

void check_device(const char* op, const char* name, const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK_TYPE(x.device() == weight.device(), "[", op, "] ", name, " is on ", x.device(),
                   "; must be on the weight's ", weight.device());
}

}  // namespace

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  const bool narrow =
      weight.scalar_type() == at::kBFloat16 && x.scalar_type() == at::kFloat;  // the op widens the weight
  if (x.scalar_type() != weight.scalar_type() && !narrow) {
    const bool autocast = ops::autocast_on();
    TORCH_CHECK_TYPE(autocast, "[projection] x has dtype ", x.scalar_type(), "; must be the weight's ",
                     weight.scalar_type());
  }
  check_device("projection", "x", x, weight);
  return ops::linear(x, weight, bias);
}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& tokens) {
  check_device("model", "tokens", tokens, weight);
  try {
    return at::embedding(weight, tokens);
  } catch (const c10::IndexError&) {
    const at::Tensor outside = tokens.masked_select((tokens < 0).logical_or(tokens >= weight.size(0)));
    fail("model", "tokens has ", outside.select(0, 0).item<int64_t>(), "; the vocabulary has ", weight.size(0));
  }
}

}  // namespace ovq::nn
