#include "ovq/ops/ovq_attention/torch.h"

#include <algorithm>
#include <utility>

#include "ovq/ops/ovq_attention/torch_call.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/option_schema.h"
#include "ovq/ops/torch/packed.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::OvqOptions;
using kernels::OvqState;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

struct KeptOptions : torch::CustomClassHolder {
  explicit KeptOptions(const OvqOptions& options) : options(options) {}
  OvqOptions options;
};

// Without states, through the dispatched ops of torch_library.cpp.
class OvqAttentionFunction : public OnceDifferentiable<OvqAttentionFunction> {
 public:
  static constexpr const char* kOp = kOvqAttention;

  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                        const c10::optional<Tensor>& weights, const OvqOptions& options,
                        const c10::optional<Tensor>& cu_seqlens, bool keep) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("ovq::ovq_attention_forward", "");
    Stack stack{q, k, v, beta, cu_seqlens, weights, keep};
    call_with_options(op, stack, options);
    if (keep) {
      context->save_for_backward({q, k, v, beta, stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(),
                                  or_undefined(weights), or_undefined(cu_seqlens)});
      context->saved_data["options"] = c10::IValue::make_capsule(c10::make_intrusive<KeptOptions>(options));
    }
    return stack[0].toTensor();
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("ovq::ovq_attention_backward", "");
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["options"].toCapsule();
    Stack stack{gradients[0], saved[0], saved[1], saved[2],           saved[3],
                saved[4],     saved[5], saved[6], optional(saved[8]), optional(saved[7])};
    call_with_options(op, stack, static_cast<const KeptOptions&>(*capsule).options);
    const auto result = [&](size_t i) { return stack[i].toTensor(); };
    const Tensor d_weights = saved[7].defined() ? result(4) : Tensor();
    return {result(0), result(1), result(2), result(3), d_weights, Tensor(), Tensor(), Tensor()};
  }

 private:
  static void call_with_options(const c10::OperatorHandle& op, Stack& stack, OvqOptions options) {
    StackWriter writer(stack);
    list_fields(writer, options);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(&stack);
  }
};

}  // namespace

Tensor ovq_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, const OvqOptions& options,
                     const c10::optional<Tensor>& cu_seqlens, const c10::optional<Tensor>& weights) {
  const Inputs in = make_inputs(kOvqAttention, q, k, v, beta, weights);
  const bool keep = needs_gradient({in.q, in.k, in.v, in.beta, in.weights});
  return OvqAttentionFunction::apply(in.q, in.k, in.v, in.beta, optional(in.weights), options, cu_seqlens, keep)
      .to(in.dtype);
}

OvqOptions options_of(const char* op, const std::vector<StatePtr>& states) {
  const OvqOptions options = states.empty() ? OvqOptions{} : states.front()->options();
  for (size_t i = 1; i < states.size(); ++i) {
    const int64_t centroids = states[i]->options().centroids;
    check(centroids == options.centroids, op, "states[", i, "] has centroids ", centroids, "; must equal states[0]'s ",
          options.centroids);
  }
  return options;
}

Tensor ovq_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                const std::vector<StatePtr>& states, const c10::optional<Tensor>& cu_seqlens,
                const c10::optional<Tensor>& weights) {
  constexpr const char* op = "step";
  const at::NoGradGuard no_grad;
  OvqCall call{.in = make_inputs(op, q, k, v, beta, weights),
               .options = options_of(op, states),
               .cu_seqlens = offsets_of(op, cu_seqlens),
               .plan = {}};
  call.options.weighted = call.in.weights.defined();
  call.plan = kernels::plan_ovq_attention(op, call.inputs(), info_of(states));
  check(static_cast<int64_t>(states.size()) == call.states(), op, "states has ", states.size(), " elements; must be ",
        call.states(), call.cu_seqlens.empty() ? ", for the whole batch" : ", one per packed sequence");
  for (size_t i = 0; i < states.size(); ++i) {
    const auto first = std::find(states.begin(), states.end(), states[i]) - states.begin();
    check(first == static_cast<int64_t>(i), op, "states[", i, "] is states[", first, "]; a step needs different ones");
  }
  // Moved into a row for the kernel and back: the call needs them side by side, and throws only before it changes them.
  std::vector<OvqState> row;
  for (const StatePtr& state : states) row.push_back(std::move(state->own_kernel()));
  const auto put_back = [&] {
    for (size_t i = 0; i < states.size(); ++i) states[i]->own_kernel() = std::move(row[i]);
  };
  try {
    const Tensor o = run_forward(call, /*keep=*/false, row).o;
    put_back();
    return o.to(call.in.dtype);
  } catch (...) {
    put_back();
    throw;
  }
}

}  // namespace ovq::ops
