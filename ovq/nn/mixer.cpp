#include "ovq/nn/mixer.h"

#include <iterator>
#include <set>
#include <sstream>

#include "ovq/base/error.h"

namespace ovq::nn {
namespace {

void check_input(const Tensor& x) {
  if (x.dim() != 3) fail("mixer", "x has ", x.dim(), " dimensions; must have 3: [batch, time, width]");
  TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), "[mixer] x has dtype ", x.scalar_type(),
                   "; must be a floating one");
}

// Whether both have the same words, in any order.
bool same_layout(const std::string& a, const std::string& b) {
  const auto words = [](const std::string& text) {
    std::istringstream in(text);
    return std::multiset<std::string>(std::istream_iterator<std::string>(in), {});
  };
  return a == b || words(a) == words(b);
}

}  // namespace

Tensor MixerState::tensor(const char* name) const {
  const auto at = tensors.find(name);
  return at == tensors.end() ? Tensor() : at->second;
}

int64_t MixerState::nbytes() const {
  int64_t bytes = ovq ? ovq->nbytes() : 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  }
  return bytes;
}

int64_t MixerState::used_bytes() const {
  int64_t bytes = ovq ? ovq->used_bytes() : 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

MixerState MixerState::clone() const {
  MixerState copy = snapshot();
  if (ovq) copy.ovq = copy.ovq->clone();
  return copy;
}

MixerState MixerState::snapshot() const {
  MixerState copy;
  copy.position = position;
  copy.dtype = dtype;
  copy.layout = layout;
  if (ovq) copy.ovq = ovq->detach();
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) copy.tensors[name] = tensor.detach().clone();
  }
  return copy;
}

void Mixer::check_state(const MixerState& state, int64_t batch) const {
  if (!state.layout.empty() && !layout_.empty() && !same_layout(state.layout, layout_)) {
    fail("mixer", "state is that of another mixer, ", state.layout, "; must be ", layout_);
  }
  for (const auto& [name, tensor] : state.tensors) {
    check(!tensor.defined() || tensor.size(0) == batch, "mixer", "state is for batch ",
          tensor.defined() ? tensor.size(0) : 0, "; x has batch ", batch);
  }
}

Tensor Mixer::mix_checked(const Tensor& x, MixerState& state) {
  Tensor y = mix(x, &state, {});
  if (state.layout.empty()) state.layout = layout_;
  return y;
}

Tensor Mixer::forward(const Tensor& x, const OptionalTensor& cu_seqlens) {
  check_input(x);
  return mix(x, nullptr, cu_seqlens);
}

Tensor Mixer::forward(const Tensor& x, MixerState& state) {
  check_input(x);
  check_state(state, x.size(0));
  return mix_checked(x, state);
}

Tensor Mixer::step(const Tensor& x, MixerState& state) {
  const torch::NoGradGuard no_grad;
  return forward(x, state);
}

}  // namespace ovq::nn
