#include "ovq/nn/ovq_attention.h"

#include <algorithm>

#include "ovq/kernels/checks.h"
#include "ovq/kernels/ovq_state.h"
#include "ovq/nn/packed.h"
#include "ovq/nn/replaced.h"
#include "ovq/ops/ovq_attention.h"

namespace ovq::nn {

OvqAttention::OvqAttention(const OvqAttentionOptions& options)
    : AttentionHeads("ovq", options.heads), options_(options) {
  options_.heads = heads();
  kernels::check(!options.dictionary.rope || heads().head_dim % 2 == 0, "ovq", "head_dim is ", heads().head_dim,
                 "; must be even with rope");
  kernels::check_options("ovq", options.dictionary, heads().head_dim);
  if (options.convolution) {
    conv_q = register_module("conv_q", ShortConvolution(ShortConvolutionOptions{heads().heads * heads().head_dim}));
    conv_k = register_module("conv_k", ShortConvolution(ShortConvolutionOptions{heads().kv_heads * heads().head_dim}));
  }
  if (options.value_shift) alpha = register_parameter("alpha", at::zeros({}));
  const kernels::OvqOptions& d = options.dictionary;  // of which centroids may change
  StateLayout layout = head_layout();
  layout.add("chunk", d.chunk).add("growth", ops::to_string(d.growth)).add("total_tokens", d.total_tokens);
  layout.add("new_centroids", ops::to_string(d.new_centroids)).add("rate", d.rate.value_or(0));
  layout.add("normalize", d.normalize).add("rope", d.rope).add("rope_base", d.rope_base).add("seed", d.seed);
  layout.add("value_shift", options.value_shift).add("convolution", options.convolution);
  set_layout(layout);
}

void OvqAttention::set_centroids(int64_t centroids) {
  kernels::OvqOptions changed = options_.dictionary;
  changed.centroids = centroids;
  kernels::check_options("ovq", changed, heads().head_dim);
  options_.dictionary = changed;
}

int64_t OvqAttention::state_bytes(int64_t tokens) const {
  const kernels::OvqOptions& dictionary = options_.dictionary;
  const int64_t dim = heads().head_dim, kv_heads = heads().kv_heads, queries = heads().heads * dim;
  int64_t floats = 0;
  if (options_.convolution && tokens > 0) floats += 3 * (queries + kv_heads * dim);
  if (options_.value_shift && tokens > 0) floats += 2 * kv_heads * dim;
  return kernels::OvqState::nbytes_after({1, kv_heads, dim, dim}, dictionary, tokens) +
         floats * static_cast<int64_t>(sizeof(float));
}

void OvqAttention::convolve(Projected& p, MixerState* state, const OptionalTensor& cu_seqlens) {
  const auto apply = [&](ShortConvolution& convolution, const char* name, const Tensor& x) {
    const Tensor flat = x.flatten(2);
    const Tensor y =
        state == nullptr ? convolution->forward(flat, cu_seqlens) : convolution->forward(flat, state->tensors[name]);
    return y.view_as(x);
  };
  p.q = apply(conv_q, "conv_q", p.q);
  p.k = apply(conv_k, "conv_k", p.k);
}

void OvqAttention::shift_values(Projected& p, MixerState* state, const OptionalTensor& cu_seqlens) {
  if (p.k.size(1) == 0) return;
  // What stands before x: the last pair, or at the start of a sequence its own first one.
  Tensor before_k = p.k.narrow(1, 0, 1), before_v = p.v.narrow(1, 0, 1);
  if (state != nullptr) {
    Tensor &last_k = state->tensors["shift_k"], &last_v = state->tensors["shift_v"];
    if (last_k.defined()) {
      before_k = last_k.to(p.k.scalar_type());
      before_v = last_v.to(p.v.scalar_type());
    }
    last_k = p.k.narrow(1, p.k.size(1) - 1, 1).clone();  // not a view, which would keep all of k
    last_v = p.v.narrow(1, p.v.size(1) - 1, 1).clone();
  }
  const Tensor all_k = at::cat({before_k, p.k}, 1), all_v = at::cat({before_v, p.v}, 1);
  const int64_t time = p.k.size(1);
  Tensor shifted_k = all_k.narrow(1, 0, time), shifted_v = all_v.narrow(1, 0, time);
  if (const std::vector<int64_t> offsets = offsets_of(cu_seqlens); !offsets.empty()) {
    const Tensor from = at::arange(time, at::kLong);
    for (const auto& sequence : kernels::check_sequences("ovq", p.k.size(0), time, offsets)) {
      if (sequence.length > 0) from[sequence.first] += 1;
    }
    shifted_k = all_k.index_select(1, from);
    shifted_v = all_v.index_select(1, from);
  }
  const Tensor share = at::sigmoid(current(alpha));
  p.k = shifted_k;
  p.v = share * shifted_v + (1 - share) * p.v;
}

Tensor OvqAttention::attend(const Projected& p, MixerState* state, const OptionalTensor& cu_seqlens) {
  if (state == nullptr) return ops::ovq_attention(p.q, p.k, p.v, beta(), options_.dictionary, cu_seqlens);
  const bool same_limit = state->ovq && state->ovq->options().centroids == options_.dictionary.centroids;
  if (same_limit && !at::GradMode::is_enabled()) return ops::ovq_step(p.q, p.k, p.v, beta(), {state->ovq});
  const std::vector<ops::StatePtr> states =
      state->ovq ? std::vector<ops::StatePtr>{state->ovq} : std::vector<ops::StatePtr>{};
  auto result = ops::ovq_attention_with_state(p.q, p.k, p.v, beta(), options_.dictionary, {}, states);
  state->ovq = result.states.front();
  return result.o;
}

Tensor OvqAttention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  Projected p = project(x);
  if (options_.convolution) convolve(p, state, cu_seqlens);
  p.q = unit_norm(p.q);
  p.k = unit_norm(p.k);
  if (options_.value_shift) shift_values(p, state, cu_seqlens);
  const Tensor o = attend(p, state, cu_seqlens);
  if (state != nullptr) state->position += x.size(1);
  return output(o);
}

}  // namespace ovq::nn
