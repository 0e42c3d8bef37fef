#include "ovq/nn/mamba2.h"

#include "ovq/nn/parameters.h"
#include "ovq/ops/projections/torch.h"
#include "ovq/ops/ssd/torch.h"
#include "ovq/ops/torch/pointwise.h"

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

RecurrentOptions recurrent(const Mamba2Options& options) {
  return {.width = options.width,
          .heads = options.heads,
          .key_dim = options.state,
          .value_dim = options.head_dim,
          .conv_width = options.conv_width};
}

}  // namespace

Mamba2::Mamba2(const Mamba2Options& options)
    : RecurrentMixer(kMamba2, recurrent(completed(options))), options_(completed(options)) {
  in_proj_ = add_projection("in_proj", inner() + convolved_channels() + options_.heads);
  add_output("out_proj");
  conv_ = add_convolution("conv", convolved_channels(), true);
  A_log_ = register_parameter("A_log", initial_a_log(options_.heads, 1, 16));
  dt_bias_ = register_parameter("dt_bias", initial_dt_bias(options_.heads));
  D_ = register_parameter("D", at::ones({options_.heads}));
  add_norm(inner(), kNormEps, options_.groups);
  StateLayout layout(kMamba2);
  layout.add("heads", options_.heads).add("head_dim", options_.head_dim).add("state", options_.state);
  set_layout(layout.add("groups", options_.groups).add("conv_width", options_.conv_width));
}

// Gate, x, b, c and the steps, [B, T, channels] each.
std::vector<Tensor> Mamba2::inputs(const RecurInputs& in) {
  const int64_t shared = options_.groups * options_.state;
  const std::vector<Tensor> parts = projected(
      in,
      {.x = in.x,
       .weights = {in_proj_->weight},
       .parts = {{.channels = inner()},
                 {.channels = convolved_channels(), .taps = conv_->weight, .taps_bias = conv_->bias, .silu = true},
                 {.channels = options_.heads}},
       .cu_seqlens = in.cu_seqlens},
      {nullptr, "conv", nullptr});
  const std::vector<Tensor> rows = parts[1].split_with_sizes({inner(), shared, shared}, -1);
  return {parts[0], rows[0], rows[1], rows[2], parts[2]};
}

RecurrentMixer::Recurred Mamba2::recur(const RecurInputs& in) {
  const std::vector<Tensor> y = inputs(in);
  return {.result = ops::ssd({.x = y[1].unflatten(-1, {options_.heads, options_.head_dim}),
                              .dt = ops::softplus(y[4] + dt_bias_),
                              .a = -ops::exp(A_log_),
                              .b = y[2].unflatten(-1, {options_.groups, options_.state}),
                              .c = y[3].unflatten(-1, {options_.groups, options_.state}),
                              .d = D_,
                              .state = in.before,
                              .starts = in.starts}),
          .gate = y[0]};
}

Tensor Mamba2::normalised(const Tensor& o, const Tensor& gate) { return norm->forward(o.flatten(2) * ops::silu(gate)); }

}  // namespace ovq::nn
