#include "ovq/nn/mesa_net.h"

#include "ovq/nn/parameters.h"
#include "ovq/ops/mesa/torch.h"
#include "ovq/ops/torch/pointwise.h"

namespace ovq::nn {
namespace {

constexpr double kSmallestLambda = 0.25;

}  // namespace

MesaNet::MesaNet(const MesaNetOptions& options)
    : RecurrentMixer("mesa_net", recurrent_options(options)), options_(options) {
  check_positive("mesa_net", "iterations", options.iterations);
  add_query_key_value();
  a_proj_ = add_projection("a_proj", options.heads, true);
  b_proj_ = add_projection("b_proj", options.heads, true);
  add_output("o_proj");
  add_query_key_convolutions();
  // softplus(lambda) + 0.25 = 1
  const double start = std::log(std::expm1(1 - kSmallestLambda));
  lambda_ = register_parameter("lambda", at::full({options.heads, options.key_dim}, start));
  add_norm(options.value_dim);
  set_layout(head_layout("mesa"));
}

int64_t MesaNet::state_elements() const {
  return options_.heads * options_.key_dim * (options_.key_dim + options_.value_dim);
}

RecurrentMixer::Recurred MesaNet::recur(const RecurInputs& in) {
  const Heads heads = query_key_value(in, {a_proj_, b_proj_});
  return {.result = ops::mesa({.q = heads.q,
                               .k = heads.k,
                               .v = heads.v,
                               .g = ops::log_sigmoid(heads.others[0]),
                               .beta = ops::sigmoid(heads.others[1]),
                               .lambda = ops::softplus(lambda_) + kSmallestLambda,
                               .state = in.before,
                               .iterations = options_.iterations,
                               .starts = in.starts})};
}

}  // namespace ovq::nn
