#include "ovq/nn/mesa_net.h"

#include "ovq/nn/mesa.h"
#include "ovq/nn/packed.h"
#include "ovq/nn/parameters.h"
#include "ovq/nn/replaced.h"

namespace ovq::nn {
namespace {

constexpr const char* kMesaNet = "mesa_net";
constexpr double kSmallestLambda = 0.25;

const MesaNetOptions& checked(const MesaNetOptions& options) {
  check_positive(kMesaNet, "width", options.width);
  check_positive(kMesaNet, "heads", options.heads);
  check_positive(kMesaNet, "key_dim", options.key_dim);
  check_positive(kMesaNet, "value_dim", options.value_dim);
  check_positive(kMesaNet, "conv_width", options.conv_width);
  check_positive(kMesaNet, "iterations", options.iterations);
  check_positive(kMesaNet, "chunk", options.chunk);
  return options;
}

}  // namespace

MesaNet::MesaNet(const MesaNetOptions& options)
    : options_(checked(options)),
      q_proj_(make_projection(options.width, options.heads * options.key_dim)),
      k_proj_(make_projection(options.width, options.heads * options.key_dim)),
      v_proj_(make_projection(options.width, options.heads * options.value_dim)),
      a_proj_(make_projection(options.width, options.heads, true)),
      b_proj_(make_projection(options.width, options.heads, true)),
      o_proj_(make_projection(options.heads * options.value_dim, options.width)),
      conv_q_(silu_convolution(options.heads * options.key_dim, options.conv_width)),
      conv_k_(silu_convolution(options.heads * options.key_dim, options.conv_width)),
      // softplus(lambda) + 0.25 = 1
      lambda_(at::full({options.heads, options.key_dim}, std::log(std::expm1(1 - kSmallestLambda)))),
      norm_(options.value_dim) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("a_proj", a_proj_);
  register_module("b_proj", b_proj_);
  register_module("o_proj", o_proj_);
  register_module("conv_q", conv_q_);
  register_module("conv_k", conv_k_);
  lambda_ = register_parameter("lambda", lambda_);
  register_module("norm", norm_);
  set_layout(recurrence_layout("mesa", options));
}

int64_t MesaNet::state_bytes(int64_t) const {
  const int64_t columns = options_.key_dim + options_.value_dim, convolved = 2 * options_.heads * options_.key_dim;
  return 4 * (options_.heads * options_.key_dim * columns + (options_.conv_width - 1) * convolved);
}

Tensor MesaNet::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  check_width(kMesaNet, x, options_.width);
  const Tensor starts = starts_of(kMesaNet, x, cu_seqlens);
  const auto heads = [&](Projection& projection, ShortConvolution& convolution, const char* name) {
    const Tensor y = projection->forward(x);
    const Tensor z = state ? convolution->forward(y, state->tensors[name]) : convolution->forward(y, cu_seqlens);
    return l2n(z.unflatten(-1, {options_.heads, options_.key_dim}));
  };
  const RecurrenceResult result = mesa({.q = heads(q_proj_, conv_q_, "conv_q"),
                                        .k = heads(k_proj_, conv_k_, "conv_k"),
                                        .v = v_proj_->forward(x).unflatten(-1, {options_.heads, options_.value_dim}),
                                        .g = at::log_sigmoid(a_proj_->forward(x)),
                                        .beta = at::sigmoid(b_proj_->forward(x)),
                                        .lambda = at::softplus(current(lambda_)) + kSmallestLambda,
                                        .state = state ? state->tensors["state"] : Tensor(),
                                        .iterations = options_.iterations,
                                        .starts = starts,
                                        .chunk = options_.chunk});
  if (state) {
    state->tensors["state"] = result.state;
    state->position += x.size(1);
  }
  return o_proj_->forward(norm_->forward(result.o).flatten(2));
}

}  // namespace ovq::nn
