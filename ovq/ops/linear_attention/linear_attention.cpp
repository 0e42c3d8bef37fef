#include "ovq/ops/linear_attention/linear_attention.h"

#include "ovq/ops/linear_attention/run.h"

namespace ovq::kernels {
namespace {

recurrence::LinearInputs linear_inputs(const LinearAttentionInputs& in) {
  recurrence::LinearInputs inputs;
  inputs.op = "linear_attention";
  inputs.q = in.q;
  inputs.k = in.k;
  inputs.v = in.v;
  inputs.g = in.g;
  inputs.scale = in.scale;
  inputs.state = in.state;
  inputs.cu_seqlens = in.cu_seqlens;
  return inputs;
}

}  // namespace

int64_t saved_floats(const LinearAttentionInputs& in) { return recurrence::saved_floats(linear_inputs(in)); }

void linear_attention_forward(const LinearAttentionInputs& in, const LinearAttentionOutputs& out) {
  recurrence::linear_forward(linear_inputs(in), out.o, out.state, out.saved);
}

void linear_attention_backward(const LinearAttentionInputs& in, std::span<const float> saved, View<const float> d_o,
                               View<const float> d_state, const LinearAttentionGradients& gradients) {
  recurrence::LinearGradients all;
  all.d_q = gradients.d_q;
  all.d_k = gradients.d_k;
  all.d_v = gradients.d_v;
  all.d_g = gradients.d_g;
  all.d_state = gradients.d_state;
  recurrence::linear_backward(linear_inputs(in), saved, d_o, d_state, all);
}

}  // namespace ovq::kernels
