// The op without states in torch's dispatcher:
//   ovq_attention_forward(q, k, v, beta, cu_seqlens, weights, keep, <options>) -> (o, lse, assignments)
//   ovq_attention_backward(d_o, q, k, v, beta, o, lse, assignments, cu_seqlens, weights, <options>)
//     -> (d_q, d_k, d_v, d_beta, d_weights)
// Without `keep` lse and assignments are empty, and without weights d_weights is.
#include <torch/library.h>

#include <string>

#include "ovq/ops/ovq_attention/torch_call.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/option_schema.h"
#include "ovq/ops/torch/packed.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::OvqOptions;
using torch::jit::Stack;

// The arguments of such an op, taken off the stack: `count` tensors, of which q is number `q_index`, then the others.
struct DispatchedCall {
  std::vector<Tensor> tensors;
  OvqCall call;
  bool keep = true;

  DispatchedCall(Stack& stack, size_t count, size_t q_index, bool has_keep) {
    const size_t first_option = count + (has_keep ? 3 : 2);
    const std::vector<c10::IValue> values = torch::jit::pop(stack, first_option + option_count<OvqOptions>());
    for (size_t i = 0; i < count; ++i) tensors.push_back(values[i].toTensor());
    call.in = {.q = with_contiguous_rows(tensors[q_index]),
               .k = with_contiguous_rows(tensors[q_index + 1]),
               .v = with_contiguous_rows(tensors[q_index + 2]),
               .beta = tensors[q_index + 3].contiguous(),
               .weights = or_undefined(values[count + 1].toOptional<Tensor>())};
    call.cu_seqlens = offsets_of(kOvqAttention, values[count].toOptional<Tensor>());
    if (has_keep) keep = values[count + 2].toBool();
    StackReader reader(kOvqAttention, c10::ArrayRef<c10::IValue>(values).slice(first_option));
    list_fields(reader, call.options);
    call.options.weighted = call.in.weights.defined();
    call.plan = kernels::plan_ovq_attention(kOvqAttention, call.inputs());
  }
};

void dispatched_forward(const c10::OperatorHandle&, Stack* stack) {
  const DispatchedCall in(*stack, 4, 0, true);
  const OvqForward forward = run_forward(in.call, in.keep, {});
  const Tensor& q = in.call.in.q;
  if (in.keep) {
    torch::jit::push(*stack, forward.o, forward.lse, forward.assignments);
  } else {
    torch::jit::push(*stack, forward.o, absent(q), at::empty({0}, q.options().dtype(at::kInt)));
  }
}

void dispatched_backward(const c10::OperatorHandle&, Stack* stack) {
  const DispatchedCall in(*stack, 8, 1, false);
  const std::vector<Tensor>& x = in.tensors;
  const OvqGradients d = run_backward(in.call, {.o = x[5], .lse = x[6], .assignments = x[7]}, x[0], {});
  const Tensor d_weights = d.d_weights.defined() ? d.d_weights : absent(in.call.in.q);
  torch::jit::push(*stack, d.d_q, d.d_k, d.d_v, d.d_beta, d_weights);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  const std::string inputs = "Tensor q, Tensor k, Tensor v, Tensor beta";
  const std::string more = ", Tensor? cu_seqlens, Tensor? weights", options = option_arguments<OvqOptions>();
  library.def(("ovq_attention_forward(" + inputs + more + ", bool keep" + options +
               ") -> (Tensor o, Tensor lse, Tensor assignments)")
                  .c_str());
  library.impl(
      "ovq_attention_forward",
      torch::dispatch(c10::DispatchKey::CPU, torch::CppFunction::makeFromBoxedFunction<&dispatched_forward>()));
  library.def(("ovq_attention_backward(Tensor d_o, " + inputs + ", Tensor o, Tensor lse, Tensor assignments" + more +
               options + ") -> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_beta, Tensor d_weights)")
                  .c_str());
  library.impl(
      "ovq_attention_backward",
      torch::dispatch(c10::DispatchKey::CPU, torch::CppFunction::makeFromBoxedFunction<&dispatched_backward>()));
}

}  // namespace ovq::ops
