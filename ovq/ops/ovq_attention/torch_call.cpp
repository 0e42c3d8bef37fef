#include "ovq/ops/ovq_attention/torch_call.h"

#include <ATen/record_function.h>

#include "ovq/ops/torch/output_memory.h"

namespace ovq::ops {
namespace {

using at::Tensor;

std::span<int32_t> assignments_of(const Tensor& x) { return {x.data_ptr<int32_t>(), static_cast<size_t>(x.numel())}; }

}  // namespace

kernels::OvqInputs OvqCall::inputs() const {
  return {.q = view_of(in.q),
          .k = view_of(in.k),
          .v = view_of(in.v),
          .beta = span_of(in.beta),
          .weights = in.weights.defined() ? weight_view_of(in.weights) : kernels::View<float>{},
          .options = options,
          .cu_seqlens = cu_seqlens};
}

kernels::OvqShape OvqCall::state_shape() const {
  return {cu_seqlens.empty() ? in.q.size(0) : 1, in.k.size(2), in.k.size(3), in.v.size(3)};
}

std::vector<kernels::OvqStateInfo> info_of(const std::vector<StatePtr>& states) {
  std::vector<kernels::OvqStateInfo> info;
  for (const StatePtr& state : states) {
    info.push_back({state->shape(), state->options(), state->position(), state->size()});
  }
  return info;
}

OvqForward run_forward(const OvqCall& call, bool keep, std::span<kernels::OvqState> states) {
  RECORD_USER_SCOPE("ovq::ovq_attention_forward");
  use_torch_threads();
  const Tensor& q = call.in.q;
  OvqForward forward{
      .o = empty_output({q.size(0), q.size(1), q.size(2), call.in.v.size(3)}), .lse = {}, .assignments = {}};
  kernels::OvqOutputs outputs{.o = view_of(forward.o), .lse = {}, .assignments = {}};
  if (keep) {
    forward.lse = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options());
    forward.assignments = at::empty({call.plan.assignments}, q.options().dtype(at::kInt));
    outputs.lse = view_of(forward.lse);
    outputs.assignments = assignments_of(forward.assignments);
  }
  kernels::ovq_attention_forward(call.plan, call.inputs(), outputs, states);
  return forward;
}

OvqGradients run_backward(const OvqCall& call, const OvqForward& forward, const Tensor& d_o_any,
                          const OvqStatesOfBackward& states) {
  RECORD_USER_SCOPE("ovq::ovq_attention_backward");
  use_torch_threads();
  const Tensor d_o = with_contiguous_rows(d_o_any), o = with_contiguous_rows(forward.o);
  const auto like = [](const Tensor& x) { return x.defined() ? empty_output(x.sizes()) : Tensor(); };
  const Inputs& in = call.in;
  OvqGradients d{
      .d_q = like(in.q), .d_k = like(in.k), .d_v = like(in.v), .d_beta = like(in.beta), .d_weights = like(in.weights)};
  kernels::ovq_attention_backward(
      call.plan, call.inputs(),
      {.o = view_of(o),
       .lse = view_of(forward.lse),
       .assignments = assignments_of(forward.assignments),
       .initial = states.initial},
      {.d_o = view_of(d_o), .d_final = states.d_final},
      {.d_q = view_of(d.d_q),
       .d_k = view_of(d.d_k),
       .d_v = view_of(d.d_v),
       .d_beta = span_of(d.d_beta),
       .d_initial = states.d_initial,
       .d_weights = d.d_weights.defined() ? weight_view_of(d.d_weights) : kernels::View<float>{}});
  return d;
}

}  // namespace ovq::ops
