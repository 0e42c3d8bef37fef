#include "ovq/nn/gated_delta_net.h"

#include "ovq/nn/gated_delta.h"
#include "ovq/nn/packed.h"
#include "ovq/nn/parameters.h"
#include "ovq/nn/replaced.h"

namespace ovq::nn {
namespace {

constexpr const char* kGatedDeltaNet = "gated_delta_net";

const GatedDeltaNetOptions& checked(const GatedDeltaNetOptions& options) {
  check_positive(kGatedDeltaNet, "width", options.width);
  check_positive(kGatedDeltaNet, "heads", options.heads);
  check_positive(kGatedDeltaNet, "key_dim", options.key_dim);
  check_positive(kGatedDeltaNet, "value_dim", options.value_dim);
  check_positive(kGatedDeltaNet, "conv_width", options.conv_width);
  check_positive(kGatedDeltaNet, "chunk", options.chunk);
  return options;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const GatedDeltaNetOptions& options)
    : options_(checked(options)),
      q_proj_(make_projection(options.width, options.heads * options.key_dim)),
      k_proj_(make_projection(options.width, options.heads * options.key_dim)),
      v_proj_(make_projection(options.width, options.heads * options.value_dim)),
      g_proj_(make_projection(options.width, options.heads * options.value_dim)),
      a_proj_(make_projection(options.width, options.heads)),
      b_proj_(make_projection(options.width, options.heads)),
      o_proj_(make_projection(options.heads * options.value_dim, options.width)),
      conv_q_(silu_convolution(options.heads * options.key_dim, options.conv_width)),
      conv_k_(silu_convolution(options.heads * options.key_dim, options.conv_width)),
      conv_v_(silu_convolution(options.heads * options.value_dim, options.conv_width)),
      A_log_(initial_a_log(options.heads, 0, 16)),
      dt_bias_(initial_dt_bias(options.heads)),
      norm_(options.value_dim) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("g_proj", g_proj_);
  register_module("a_proj", a_proj_);
  register_module("b_proj", b_proj_);
  register_module("o_proj", o_proj_);
  register_module("conv_q", conv_q_);
  register_module("conv_k", conv_k_);
  register_module("conv_v", conv_v_);
  A_log_ = register_parameter("A_log", A_log_);
  dt_bias_ = register_parameter("dt_bias", dt_bias_);
  register_module("norm", norm_);
  set_layout(recurrence_layout("gdn", options));
}

int64_t GatedDeltaNet::state_bytes(int64_t) const {
  const int64_t convolved = options_.heads * (2 * options_.key_dim + options_.value_dim);
  return 4 * (options_.heads * options_.key_dim * options_.value_dim + (options_.conv_width - 1) * convolved);
}

Tensor GatedDeltaNet::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  check_width(kGatedDeltaNet, x, options_.width);
  const Tensor starts = starts_of(kGatedDeltaNet, x, cu_seqlens);
  const auto heads = [&](Projection& projection, ShortConvolution& convolution, const char* name, int64_t dim) {
    const Tensor y = projection->forward(x);
    const Tensor z = state ? convolution->forward(y, state->tensors[name]) : convolution->forward(y, cu_seqlens);
    return z.unflatten(-1, {options_.heads, dim});
  };
  const Tensor q = l2n(heads(q_proj_, conv_q_, "conv_q", options_.key_dim));
  const Tensor k = l2n(heads(k_proj_, conv_k_, "conv_k", options_.key_dim));
  const Tensor v = heads(v_proj_, conv_v_, "conv_v", options_.value_dim);
  const Tensor g = -current(A_log_).exp() * at::softplus(a_proj_->forward(x) + current(dt_bias_));
  const RecurrenceResult result = gated_delta({.q = q,
                                               .k = k,
                                               .v = v,
                                               .g = g,
                                               .beta = at::sigmoid(b_proj_->forward(x)),
                                               .state = state ? state->tensors["state"] : Tensor(),
                                               .starts = starts,
                                               .chunk = options_.chunk});
  if (state) {
    state->tensors["state"] = result.state;
    state->position += x.size(1);
  }
  return o_proj_->forward(norm_->forward(result.o).flatten(2) * at::silu(g_proj_->forward(x)));
}

}  // namespace ovq::nn
