#include "ovq/nn/linear_attention_mixer.h"

#include "ovq/nn/linear_attention.h"
#include "ovq/nn/packed.h"
#include "ovq/nn/parameters.h"

namespace ovq::nn {
namespace {

constexpr const char* kLinearAttentionMixer = "linear_attention_mixer";

const LinearAttentionMixerOptions& checked(const LinearAttentionMixerOptions& options) {
  check_positive(kLinearAttentionMixer, "width", options.width);
  check_positive(kLinearAttentionMixer, "heads", options.heads);
  check_positive(kLinearAttentionMixer, "key_dim", options.key_dim);
  check_positive(kLinearAttentionMixer, "value_dim", options.value_dim);
  check_positive(kLinearAttentionMixer, "conv_width", options.conv_width);
  check_positive(kLinearAttentionMixer, "chunk", options.chunk);
  return options;
}

}  // namespace

LinearAttentionMixer::LinearAttentionMixer(const LinearAttentionMixerOptions& options)
    : options_(checked(options)),
      q_proj_(make_projection(options.width, options.heads * options.key_dim)),
      k_proj_(make_projection(options.width, options.heads * options.key_dim)),
      v_proj_(make_projection(options.width, options.heads * options.value_dim)),
      o_proj_(make_projection(options.heads * options.value_dim, options.width)),
      conv_q_(silu_convolution(options.heads * options.key_dim, options.conv_width)),
      conv_k_(silu_convolution(options.heads * options.key_dim, options.conv_width)),
      conv_v_(silu_convolution(options.heads * options.value_dim, options.conv_width)),
      norm_(options.value_dim) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("o_proj", o_proj_);
  register_module("conv_q", conv_q_);
  register_module("conv_k", conv_k_);
  register_module("conv_v", conv_v_);
  register_module("norm", norm_);
  set_layout(recurrence_layout("linear", options));
}

int64_t LinearAttentionMixer::state_bytes(int64_t) const {
  const int64_t convolved = options_.heads * (2 * options_.key_dim + options_.value_dim);
  return 4 * (options_.heads * options_.key_dim * options_.value_dim + (options_.conv_width - 1) * convolved);
}

Tensor LinearAttentionMixer::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  check_width(kLinearAttentionMixer, x, options_.width);
  const Tensor starts = starts_of(kLinearAttentionMixer, x, cu_seqlens);
  const auto heads = [&](Projection& projection, ShortConvolution& convolution, const char* name, int64_t dim) {
    const Tensor y = projection->forward(x);
    const Tensor z = state ? convolution->forward(y, state->tensors[name]) : convolution->forward(y, cu_seqlens);
    return z.unflatten(-1, {options_.heads, dim});
  };
  const Tensor q = l2n(heads(q_proj_, conv_q_, "conv_q", options_.key_dim));
  const Tensor k = l2n(heads(k_proj_, conv_k_, "conv_k", options_.key_dim));
  const Tensor v = heads(v_proj_, conv_v_, "conv_v", options_.value_dim);
  const RecurrenceResult result = linear_attention({.q = q,
                                                    .k = k,
                                                    .v = v,
                                                    .state = state ? state->tensors["state"] : Tensor(),
                                                    .starts = starts,
                                                    .chunk = options_.chunk});
  if (state) {
    state->tensors["state"] = result.state;
    state->position += x.size(1);
  }
  return o_proj_->forward(norm_->forward(result.o).flatten(2));
}

}  // namespace ovq::nn
