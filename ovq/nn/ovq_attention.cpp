#include "ovq/nn/ovq_attention.h"

#include "ovq/ops/ovq_attention/state.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/pointwise.h"

namespace ovq::nn {

OvqAttention::OvqAttention(const OvqAttentionOptions& options)
    : AttentionHeads("ovq", options.heads), options_(options) {
  options_.heads = heads();
  options_.dictionary.weighted = options.weighted_writes;
  check(!options.dictionary.rope || heads().head_dim % 2 == 0, "ovq", "head_dim is ", heads().head_dim,
        "; must be even with rope");
  kernels::check_options("ovq", options_.dictionary, heads().head_dim);
  if (options.weighted_writes) {
    w_gate = register_module("w_gate", Projection(torch::nn::LinearOptions(heads().width, heads().kv_heads)));
    const torch::NoGradGuard no_grad;
    w_gate->weight.zero_();
    w_gate->bias.fill_(3.0);  // every token counts about the same
  }
  StateLayout layout = head_layout();
  // `centroids` may change. Options that were added later appear only where they are used, so that older states still
  // fit.
  const auto add = [&](std::string_view name, const auto& value, auto&&...) {
    if (name != "centroids" && name != "value_norms") layout.add(name, value);
  };
  list_fields(add, options_.dictionary);
  if (options.dictionary.value_norms) layout.add("value_norms", true);
  if (options.weighted_writes) layout.add("weighted_writes", true);
  set_layout(layout);
}

void OvqAttention::set_centroids(int64_t centroids) {
  kernels::OvqOptions changed = options_.dictionary;
  changed.centroids = centroids;
  kernels::check_options("ovq", changed, heads().head_dim);
  options_.dictionary = changed;
}

int64_t OvqAttention::shifted_bytes(int64_t tokens) const {
  const bool shifts_weights = options_.weighted_writes && heads().value_shift && tokens > 0;
  return input_state_bytes(tokens) + (shifts_weights ? heads().kv_heads * static_cast<int64_t>(sizeof(float)) : 0);
}

int64_t OvqAttention::state_bytes(int64_t tokens, kernels::StateDtype dtype) const {
  return kernels::OvqState::nbytes_after(shape(), options_.dictionary, tokens, dtype) + shifted_bytes(tokens);
}

int64_t OvqAttention::saved_bytes(int64_t tokens, kernels::StateDtype dtype) const {
  return kernels::OvqState::file_bytes_after(shape(), options_.dictionary, tokens, dtype) + shifted_bytes(tokens);
}

Tensor OvqAttention::write_weights(const Tensor& x) {
  // A NaN shows in the outputs; as a weight it would be an error.
  return ops::through_float(w_gate(x), [](const Tensor& gate) {  // [B, T, Hkv]
    return at::sigmoid(gate).nan_to_num(1.0).clamp_min(1e-6);
  });
}

Tensor OvqAttention::shifted_weights(const Tensor& weights, const Tensor& before,
                                     const OptionalTensor& cu_seqlens) const {
  const int64_t time = weights.size(1);
  const Tensor first = before.defined() ? before.to(weights.scalar_type()) : weights.narrow(1, 0, 1);
  const Tensor all = at::cat({first, weights}, 1);
  const std::vector<int64_t> offsets = ops::offsets_of("ovq", cu_seqlens);
  if (offsets.empty()) return all.narrow(1, 0, time);
  const Tensor from = at::arange(time, at::kLong);
  for (const auto& sequence : kernels::check_sequences("ovq", weights.size(0), time, offsets)) {
    if (sequence.length > 0) from[sequence.first] += 1;
  }
  return all.index_select(1, from);
}

Tensor OvqAttention::attend(const Inputs& in, const OptionalTensor& weights, MixerState* state,
                            const OptionalTensor& cu_seqlens) {
  if (state == nullptr) {
    return ops::ovq_attention(in.q, in.k, in.v, beta(), options_.dictionary, cu_seqlens, weights);
  }
  const bool other_dtype = state->ovq && state->ovq->dtype() != torch_dtype(state->dtype);
  if (other_dtype) state->ovq = state->ovq->to(state->dtype);
  const bool same_limit = state->ovq && state->ovq->options().centroids == options_.dictionary.centroids;
  if (same_limit && !at::GradMode::is_enabled()) {
    return ops::ovq_step(in.q, in.k, in.v, beta(), {state->ovq}, {}, weights);
  }
  const std::vector<ops::StatePtr> states =
      state->ovq ? std::vector<ops::StatePtr>{state->ovq} : std::vector<ops::StatePtr>{};
  auto result =
      ops::ovq_attention_with_state(in.q, in.k, in.v, beta(), options_.dictionary, {}, states, weights, state->dtype);
  state->ovq = result.states.front();
  return result.o;
}

Tensor OvqAttention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  const Inputs in = attention_inputs(x, state, cu_seqlens);
  OptionalTensor weights;
  Tensor last_weight;
  if (options_.weighted_writes) {
    weights = write_weights(x);
    if (heads().value_shift && x.size(1) > 0) {
      if (state != nullptr) last_weight = weights->narrow(1, x.size(1) - 1, 1).clone();  // not a view, which keeps all
      weights = shifted_weights(*weights, state == nullptr ? Tensor() : state->tensor("shift_w"), cu_seqlens);
    }
  }
  const Tensor o = attend(in, weights, state, cu_seqlens);
  if (state != nullptr) {
    carry_on(in, *state);
    if (last_weight.defined()) state->tensors["shift_w"] = last_weight;
    state->position += x.size(1);
  }
  return output(o);
}

}  // namespace ovq::nn
