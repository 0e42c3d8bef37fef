#include "ovq/nn/mamba2.h"

#include "ovq/nn/packed.h"
#include "ovq/nn/parameters.h"
#include "ovq/nn/replaced.h"
#include "ovq/nn/ssd.h"

namespace ovq::nn {
namespace {

constexpr const char* kMamba2 = "mamba2";
constexpr double kNormEps = 1e-5;  // the official layer's

Mamba2Options completed(Mamba2Options options) {
  check_positive(kMamba2, "width", options.width);
  check_positive(kMamba2, "head_dim", options.head_dim);
  check_positive(kMamba2, "expand", options.expand);
  check_positive(kMamba2, "state", options.state);
  check_positive(kMamba2, "groups", options.groups);
  check_positive(kMamba2, "conv_width", options.conv_width);
  check_positive(kMamba2, "chunk", options.chunk);
  const int64_t inner = options.expand * options.width;
  check(inner % options.head_dim == 0, kMamba2, "head_dim is ", options.head_dim, "; must divide expand * width, ",
        inner);
  if (options.heads == 0) options.heads = inner / options.head_dim;
  check(options.heads * options.head_dim == inner, kMamba2, "heads is ", options.heads,
        "; must be expand * width / head_dim, ", inner / options.head_dim);
  check(options.heads % options.groups == 0, kMamba2, "groups is ", options.groups, "; must divide the heads, ",
        options.heads);
  return options;
}

}  // namespace

Mamba2::Mamba2(const Mamba2Options& options)
    : options_(completed(options)),
      in_proj_(make_projection(options_.width, inner() + convolved() + options_.heads)),
      out_proj_(make_projection(inner(), options_.width)),
      conv_(ShortConvolutionOptions{
          .channels = convolved(), .width = options_.conv_width, .bias = true, .activation = Activation::silu}),
      A_log_(initial_a_log(options_.heads, 1, 16)),
      dt_bias_(initial_dt_bias(options_.heads)),
      D_(at::ones({options_.heads})),
      norm_(inner(), kNormEps, options_.groups) {
  register_module("in_proj", in_proj_);
  register_module("out_proj", out_proj_);
  register_module("conv", conv_);
  A_log_ = register_parameter("A_log", A_log_);
  dt_bias_ = register_parameter("dt_bias", dt_bias_);
  D_ = register_parameter("D", D_);
  register_module("norm", norm_);
  StateLayout layout(kMamba2);
  layout.add("heads", options_.heads).add("head_dim", options_.head_dim).add("state", options_.state);
  set_layout(layout.add("groups", options_.groups).add("conv_width", options_.conv_width));
}

int64_t Mamba2::state_bytes(int64_t) const {
  return 4 * (inner() * options_.state + (options_.conv_width - 1) * convolved());
}

Tensor Mamba2::mix(const Tensor& u, MixerState* state, const OptionalTensor& cu_seqlens) {
  check_width(kMamba2, u, options_.width);
  const Tensor starts = starts_of(kMamba2, u, cu_seqlens);
  const std::vector<Tensor> parts = in_proj_->forward(u).split_with_sizes({inner(), convolved(), options_.heads}, -1);
  const Tensor& z = parts[0];
  const Tensor xbc = state ? conv_->forward(parts[1], state->tensors["conv"]) : conv_->forward(parts[1], cu_seqlens);
  const int64_t shared = options_.groups * options_.state;
  const std::vector<Tensor> inputs = xbc.split_with_sizes({inner(), shared, shared}, -1);
  const RecurrenceResult result = ssd({.x = inputs[0].unflatten(-1, {options_.heads, options_.head_dim}),
                                       .dt = at::softplus(parts[2] + current(dt_bias_)),
                                       .a = -current(A_log_).exp(),
                                       .b = inputs[1].unflatten(-1, {options_.groups, options_.state}),
                                       .c = inputs[2].unflatten(-1, {options_.groups, options_.state}),
                                       .d = current(D_),
                                       .state = state ? state->tensors["state"] : Tensor(),
                                       .starts = starts,
                                       .chunk = options_.chunk});
  if (state) {
    state->tensors["state"] = result.state;
    state->position += u.size(1);
  }
  return out_proj_->forward(norm_->forward(result.o.flatten(2) * at::silu(z)));
}

}  // namespace ovq::nn
