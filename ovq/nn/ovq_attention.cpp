#include "ovq/nn/ovq_attention.h"

#include <algorithm>

#include "ovq/kernels/checks.h"
#include "ovq/kernels/ovq_state.h"
#include "ovq/nn/packed.h"
#include "ovq/ops/ovq_attention.h"

namespace ovq::nn {

OvqAttention::OvqAttention(const OvqAttentionOptions& options)
    : AttentionHeads("ovq", options.heads), options_(options) {
  options_.heads = heads();
  options_.dictionary.weighted = options.weighted_writes;
  kernels::check(!options.dictionary.rope || heads().head_dim % 2 == 0, "ovq", "head_dim is ", heads().head_dim,
                 "; must be even with rope");
  kernels::check_options("ovq", options_.dictionary, heads().head_dim);
  if (options.convolution) {
    conv_q = register_module("conv_q", ShortConvolution(ShortConvolutionOptions{heads().heads * heads().head_dim}));
    conv_k = register_module("conv_k", ShortConvolution(ShortConvolutionOptions{heads().kv_heads * heads().head_dim}));
  }
  if (options.value_shift) alpha = register_parameter("alpha", at::zeros({}));
  if (options.weighted_writes) {
    w_gate = register_module("w_gate", torch::nn::Linear(heads().width, heads().kv_heads));
    const torch::NoGradGuard no_grad;
    w_gate->weight.zero_();
    w_gate->bias.fill_(3.0);  // every token counts about the same
  }
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
  kernels::OvqState state({1, 1, dim, dim}, dictionary);
  state.reserve(tokens);
  int64_t floats = 0;
  if (options_.convolution && tokens > 0) floats += 3 * (queries + kv_heads * dim);
  if (options_.value_shift && tokens > 0) floats += 2 * kv_heads * dim + (options_.weighted_writes ? kv_heads : 0);
  return state.nbytes() * kv_heads + floats * static_cast<int64_t>(sizeof(float));
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
      before_k = last_k;
      before_v = last_v;
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
  const Tensor share = at::sigmoid(alpha);
  p.k = shifted_k;
  p.v = share * shifted_v + (1 - share) * p.v;
}

OptionalTensor OvqAttention::write_weights(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  if (!options_.weighted_writes) return {};
  const Tensor weights = at::sigmoid(w_gate(x)).clamp_min(1e-6);  // [B, T, Hkv]
  const int64_t time = x.size(1);
  if (!options_.value_shift || time == 0) return weights;
  // The weight of the token before; at the start of a sequence its own.
  Tensor before = weights.narrow(1, 0, 1);
  if (state != nullptr) {
    Tensor& last = state->tensors["shift_w"];
    if (last.defined()) before = last;
    last = weights.narrow(1, time - 1, 1).clone();
  }
  const Tensor all = at::cat({before, weights}, 1);
  const Tensor from = at::arange(time, at::kLong);
  if (const std::vector<int64_t> offsets = offsets_of(cu_seqlens); !offsets.empty()) {
    for (const auto& sequence : kernels::check_sequences("ovq", x.size(0), time, offsets)) {
      if (sequence.length > 0) from[sequence.first] += 1;
    }
  }
  return all.index_select(1, from.to(x.device()));
}

Tensor OvqAttention::attend(const Projected& p, const OptionalTensor& weights, MixerState* state,
                            const OptionalTensor& cu_seqlens) {
  if (state == nullptr) return ops::ovq_attention(p.q, p.k, p.v, beta(), options_.dictionary, cu_seqlens, weights);
  const bool same_limit = state->ovq && state->ovq->options().centroids == options_.dictionary.centroids;
  if (same_limit && !at::GradMode::is_enabled()) {
    return ops::ovq_step(p.q, p.k, p.v, beta(), {state->ovq}, {}, weights);
  }
  const std::vector<ops::StatePtr> states =
      state->ovq ? std::vector<ops::StatePtr>{state->ovq} : std::vector<ops::StatePtr>{};
  auto result = ops::ovq_attention_with_state(p.q, p.k, p.v, beta(), options_.dictionary, {}, states, weights);
  state->ovq = result.states.front();
  return result.o;
}

Tensor OvqAttention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  Projected p = project(x);
  if (options_.convolution) convolve(p, state, cu_seqlens);
  p.q = unit_norm(p.q);
  p.k = unit_norm(p.k);
  if (options_.value_shift) shift_values(p, state, cu_seqlens);
  const Tensor o = attend(p, write_weights(x, state, cu_seqlens), state, cu_seqlens);
  if (state != nullptr) state->position += x.size(1);
  return output(o);
}

}  // namespace ovq::nn
