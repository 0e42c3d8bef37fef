#include "ovq/nn/projection.h"

#include <ATen/autocast_mode.h>

#include "ovq/nn/replaced.h"

namespace ovq::nn {

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  if (const PartCall* call = call_of(*this)) return (*call)(x, {}, {});
  const at::Tensor& w = current(weight);
  if (x.scalar_type() != w.scalar_type()) {
    const bool autocast = at::autocast::is_enabled() || at::autocast::is_cpu_enabled();
    TORCH_CHECK_TYPE(autocast, "[projection] x has dtype ", x.scalar_type(), "; must be the weight's ",
                     w.scalar_type());
  }
  return at::linear(x, w, current(bias));
}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& tokens) {
  if (const PartCall* call = call_of(*this)) return (*call)(tokens, {}, {});
  return at::embedding(current(weight), tokens);
}

}  // namespace ovq::nn
