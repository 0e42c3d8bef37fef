#include "ovq/nn/gated_delta_net.h"

#include "ovq/nn/parameters.h"
#include "ovq/ops/gated_delta_rule/torch.h"
#include "ovq/ops/torch/pointwise.h"

namespace ovq::nn {

GatedDeltaNet::GatedDeltaNet(const GatedDeltaNetOptions& options)
    : RecurrentMixer("gated_delta_net", recurrent_options(options)), options_(options) {
  add_query_key_value();
  g_proj_ = add_projection("g_proj", options.heads * options.value_dim);
  a_proj_ = add_projection("a_proj", options.heads);
  b_proj_ = add_projection("b_proj", options.heads);
  add_output("o_proj");
  add_query_key_convolutions();
  add_value_convolution();
  A_log_ = register_parameter("A_log", initial_a_log(options.heads, 0, 16));
  dt_bias_ = register_parameter("dt_bias", initial_dt_bias(options.heads));
  add_norm(options.value_dim);
  set_layout(head_layout("gdn"));
}

RecurrentMixer::Recurred GatedDeltaNet::recur(const RecurInputs& in) {
  const Heads heads = query_key_value(in, {g_proj_, a_proj_, b_proj_});
  const Tensor g = -ops::exp(A_log_) * ops::softplus(heads.others[1] + dt_bias_);
  return {.result = ops::gated_delta_rule({.q = heads.q,
                                           .k = heads.k,
                                           .v = heads.v,
                                           .g = g,
                                           .beta = ops::sigmoid(heads.others[2]),
                                           .state = in.before,
                                           .starts = in.starts}),
          .gate = heads.others[0]};
}

}  // namespace ovq::nn
