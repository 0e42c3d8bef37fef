#include "ovq/nn/mixer.h"

#include "ovq/kernels/error.h"

namespace ovq::nn {
namespace {

void check(const Tensor& x) {
  if (x.dim() != 3) kernels::fail("mixer", "x has ", x.dim(), " dimensions; must have 3: [batch, time, width]");
}

}  // namespace

int64_t MixerState::nbytes() const {
  int64_t bytes = ovq ? ovq->nbytes() : 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

MixerState MixerState::clone() const {
  MixerState copy;
  copy.position = position;
  if (ovq) copy.ovq = ovq->detach()->clone();
  for (const auto& [name, tensor] : tensors) copy.tensors[name] = tensor.detach().clone();
  return copy;
}

Tensor Mixer::forward(const Tensor& x, const OptionalTensor& cu_seqlens) {
  check(x);
  return mix(x, nullptr, cu_seqlens);
}

Tensor Mixer::forward(const Tensor& x, MixerState& state) {
  check(x);
  return mix(x, &state, {});
}

Tensor Mixer::step(const Tensor& x, MixerState& state) {
  check(x);
  const torch::NoGradGuard no_grad;
  return mix(x, &state, {});
}

}  // namespace ovq::nn
