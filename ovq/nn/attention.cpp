#include "ovq/nn/attention.h"

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/nn/cache.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/rotary/torch.h"

namespace ovq::nn {
Attention::Attention(const AttentionOptions& options) : AttentionHeads("attention", options.heads), options_(options) {
  options_.heads = heads();
  check_fields("attention", options_);
  check(!options.rope || heads().head_dim % 2 == 0, "attention", "head_dim is ", heads().head_dim,
        "; must be even with rope");
  StateLayout layout = head_layout();
  layout.add("window", options.window).add("rope", options.rope);
  if (options.rope) layout.add("rope_base", options.rope_base);
  set_layout(layout);
}

int64_t Attention::cache_bytes(int64_t rows, kernels::StateDtype dtype) const {
  const int64_t size = dtype == kernels::StateDtype::bfloat16 ? 2 : 4;
  return 2 * rows * heads().kv_heads * heads().head_dim * size;
}

int64_t Attention::state_bytes(int64_t tokens, kernels::StateDtype dtype) const {
  if (tokens == 0) return 0;
  return cache_bytes(cache_capacity(tokens, options_.window), dtype) + input_state_bytes(tokens);
}

int64_t Attention::saved_bytes(int64_t tokens, kernels::StateDtype dtype) const {
  const int64_t rows = options_.window == 0 ? tokens : std::min(tokens, options_.window - 1);
  return cache_bytes(rows, dtype) + input_state_bytes(tokens);
}

Tensor Attention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  c10::optional<ops::RotaryOptions> rotation;
  if (options_.rope) {
    rotation = ops::RotaryOptions{options_.rope_base, state != nullptr ? state->position : 0, cu_seqlens};
  }
  const Inputs in = attention_inputs(x, state, cu_seqlens, rotation);
  if (state == nullptr) return output(ops::attention(in.q, in.k, in.v, beta(), options_.window, 0, cu_seqlens));
  CacheRollback rollback(*state, options_.window == 0);
  const Tensor keys = extend_cache(state->tensors["keys"], in.k, options_.window, state->dtype);
  const Tensor values = extend_cache(state->tensors["values"], in.v, options_.window, state->dtype);
  const Tensor o = ops::attention(in.q, keys, values, beta(), options_.window, keys.size(1) - in.q.size(1));
  rollback.keep();
  carry_on(in, *state);
  state->position += x.size(1);
  return output(o);
}

}  // namespace ovq::nn
