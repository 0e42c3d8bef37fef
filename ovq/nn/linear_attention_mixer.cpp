#include "ovq/nn/linear_attention_mixer.h"

#include "ovq/ops/linear_attention/torch.h"

namespace ovq::nn {

LinearAttentionMixer::LinearAttentionMixer(const LinearAttentionMixerOptions& options)
    : RecurrentMixer("linear_attention_mixer", recurrent_options(options)), options_(options) {
  add_query_key_value();
  add_output("o_proj");
  add_query_key_convolutions();
  add_value_convolution();
  add_norm(options.value_dim);
  set_layout(head_layout("linear"));
}

RecurrentMixer::Recurred LinearAttentionMixer::recur(const RecurInputs& in) {
  const Heads heads = query_key_value(in);
  return {.result = ops::linear_attention(
              {.q = heads.q, .k = heads.k, .v = heads.v, .state = in.before, .starts = in.starts})};
}

}  // namespace ovq::nn
