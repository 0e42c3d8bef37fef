#include "ovq/ops/ovq_attention/torch.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/option_schema.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::OvqOptions;
using kernels::OvqState;
using kernels::StateDtype;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

constexpr const char* kOp = "ovq_attention";

// What forward tells backward, besides tensors.
struct OvqCall : torch::CustomClassHolder {
  OvqOptions options;
  std::vector<int64_t> cu_seqlens;
  kernels::OvqPlan plan;
  std::vector<std::shared_ptr<OvqState>> initial;  // empty: from the start
  std::vector<std::shared_ptr<OvqState>> final;    // set by forward if wanted
  StateDtype state_dtype = StateDtype::float32;    // of new ones
  bool want_gradients = false;
};
using OvqCallPtr = c10::intrusive_ptr<OvqCall>;

// Weights and counts [B, T, H] as [B, T, H, 1]
kernels::View<float> weight_view_of(const Tensor& weights) { return view_of(weights.unsqueeze(-1)); }

kernels::OvqInputs kernel_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                 const Tensor& weights, const OvqCall& call) {
  return {.q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .beta = span_of(beta),
          .weights = weights.defined() ? weight_view_of(weights) : kernels::View<float>{},
          .options = call.options,
          .cu_seqlens = call.cu_seqlens};
}

int64_t state_count(const std::vector<int64_t>& cu_seqlens) {
  return cu_seqlens.empty() ? 1 : static_cast<int64_t>(cu_seqlens.size()) - 1;
}

// States for the kernels to work on: copies of the initial ones, or new.
std::vector<OvqState> working_states(const Tensor& q, const Tensor& k, const Tensor& v, const OvqCall& call) {
  std::vector<OvqState> states;
  if (!call.initial.empty()) {
    for (const auto& state : call.initial) states.push_back(*state);
  } else {
    const int64_t batch = call.cu_seqlens.empty() ? q.size(0) : 1;
    states.assign(state_count(call.cu_seqlens),
                  OvqState({batch, k.size(2), k.size(3), v.size(3)}, call.options, call.state_dtype));
  }
  return states;
}

// The dispatched ops take and give
//   ovq_attention_forward(q, k, v, beta, cu_seqlens, weights, keep, <options>) -> (o, lse, assignments)
//   ovq_attention_backward(d_o, q, k, v, beta, o, lse, assignments, cu_seqlens, weights, <options>)
//     -> (d_q, d_k, d_v, d_beta, d_weights)
// Without `keep` lse and assignments are empty, and without weights d_weights is.
struct DispatchedCall {
  std::vector<Tensor> tensors;
  OvqCall call;
  Tensor q, k, v, beta, weights;
  bool keep = true;

  // `count` tensors are given, of which q is number `q_index`.
  DispatchedCall(Stack& stack, size_t count, size_t q_index, bool has_keep) {
    const size_t first_option = count + (has_keep ? 3 : 2);
    const std::vector<c10::IValue> values = torch::jit::pop(stack, first_option + option_count<OvqOptions>());
    for (size_t i = 0; i < count; ++i) tensors.push_back(values[i].toTensor());
    call.cu_seqlens = offsets_of(kOp, values[count].toOptional<Tensor>());
    const auto given = values[count + 1].toOptional<Tensor>();
    if (has_keep) keep = values[count + 2].toBool();
    StackReader reader(kOp, c10::ArrayRef<c10::IValue>(values).slice(first_option));
    list_fields(reader, call.options);
    q = with_contiguous_rows(tensors[q_index]);
    k = with_contiguous_rows(tensors[q_index + 1]);
    v = with_contiguous_rows(tensors[q_index + 2]);
    beta = tensors[q_index + 3].contiguous();
    call.options.weighted = given.has_value();
    if (given) weights = *given;
    call.plan = kernels::plan_ovq_attention(kOp, inputs());
  }

  kernels::OvqInputs inputs() const { return kernel_inputs(q, k, v, beta, weights, call); }
};

std::span<int32_t> assignments_of(const Tensor& x) { return {x.data_ptr<int32_t>(), static_cast<size_t>(x.numel())}; }

void dispatched_forward(const c10::OperatorHandle&, Stack* stack) {
  RECORD_USER_SCOPE("ovq::ovq_attention_forward");
  use_torch_threads();
  const DispatchedCall in(*stack, 4, 0, true);
  const Tensor &q = in.q, o = empty_output({q.size(0), q.size(1), q.size(2), in.v.size(3)});
  Tensor lse = absent(q), assignments = at::empty({0}, q.options().dtype(at::kInt));
  kernels::OvqOutputs outputs = {.o = view_of(o), .lse = {}, .assignments = {}};
  if (in.keep) {
    lse = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options());
    assignments = at::empty({in.call.plan.assignments}, q.options().dtype(at::kInt));
    outputs.lse = view_of(lse);
    outputs.assignments = assignments_of(assignments);
  }
  kernels::ovq_attention_forward(in.call.plan, in.inputs(), outputs, {});
  torch::jit::push(*stack, o, lse, assignments);
}

void dispatched_backward(const c10::OperatorHandle&, Stack* stack) {
  RECORD_USER_SCOPE("ovq::ovq_attention_backward");
  use_torch_threads();
  const DispatchedCall in(*stack, 8, 1, false);
  const Tensor d_o = with_contiguous_rows(in.tensors[0]), o = with_contiguous_rows(in.tensors[5]);
  const Tensor &lse = in.tensors[6], &assignments = in.tensors[7];
  const Tensor d_q = empty_output(in.q.sizes()), d_k = empty_output(in.k.sizes()), d_v = empty_output(in.v.sizes());
  const Tensor d_beta = empty_output(in.beta.sizes());
  const bool weighted = in.weights.defined();
  const Tensor d_weights = weighted ? empty_output(in.weights.sizes()) : absent(in.q);
  kernels::ovq_attention_backward(
      in.call.plan, in.inputs(),
      {.o = view_of(o), .lse = view_of(lse), .assignments = assignments_of(assignments), .initial = {}},
      {.d_o = view_of(d_o), .d_final = {}},
      {.d_q = view_of(d_q),
       .d_k = view_of(d_k),
       .d_v = view_of(d_v),
       .d_beta = span_of(d_beta),
       .d_initial = {},
       .d_weights = weighted ? weight_view_of(d_weights) : kernels::View<float>{}});
  torch::jit::push(*stack, d_q, d_k, d_v, d_beta, d_weights);
}

// Without states.
class FusedOvqAttention : public OnceDifferentiable<FusedOvqAttention> {
 public:
  static constexpr const char* kOp = ovq::ops::kOp;

  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                        const c10::optional<Tensor>& weights, const OvqOptions& options,
                        const c10::optional<Tensor>& cu_seqlens, bool keep) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("ovq::ovq_attention_forward", "");
    Stack stack{q, k, v, beta, cu_seqlens, weights, keep};
    call_with_options(op, stack, options);
    if (keep) {
      const Tensor packed = cu_seqlens ? *cu_seqlens : Tensor(), factors = weights ? *weights : Tensor();
      context->save_for_backward(
          {q, k, v, beta, stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), factors, packed});
      const auto kept = c10::make_intrusive<OvqCall>();
      kept->options = options;
      context->saved_data["call"] = c10::IValue::make_capsule(kept);
    }
    return stack[0].toTensor();
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("ovq::ovq_attention_backward", "");
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    Stack stack{gradients[0], saved[0], saved[1], saved[2],           saved[3],
                saved[4],     saved[5], saved[6], optional(saved[8]), optional(saved[7])};
    call_with_options(op, stack, static_cast<const OvqCall&>(*capsule).options);
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

class FusedOvqAttentionWithStates : public OnceDifferentiable<FusedOvqAttentionWithStates> {
 public:
  static constexpr const char* kOp = ovq::ops::kOp;

  // `more`: the weights, if there are any, then the tensors of the incoming states. Outputs: o, then the tensors of
  // each state.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& beta, at::TensorList more, const OvqCallPtr& call) {
    RECORD_USER_SCOPE("ovq::ovq_attention_forward");
    use_torch_threads();
    const Tensor weights = call->options.weighted ? more[0] : Tensor();
    const kernels::OvqInputs inputs = kernel_inputs(q, k, v, beta, weights, *call);
    std::vector<OvqState> states = working_states(q, k, v, *call);
    const Tensor o = empty_output({q.size(0), q.size(1), q.size(2), v.size(3)});
    kernels::OvqOutputs outputs = {.o = view_of(o), .lse = {}, .assignments = {}};
    Tensor lse, assignments;
    if (call->want_gradients) {
      lse = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options());
      assignments = at::empty({call->plan.assignments}, q.options().dtype(at::kInt));
      outputs.lse = view_of(lse);
      outputs.assignments = {assignments.data_ptr<int32_t>(), static_cast<size_t>(assignments.numel())};
    }
    kernels::ovq_attention_forward(call->plan, inputs, outputs, states);

    variable_list results = {o};
    for (OvqState& state : states) {
      call->final.push_back(std::make_shared<OvqState>(std::move(state)));
      for (const Tensor& x : views_of(call->final.back()).list()) results.push_back(x);
    }
    if (call->want_gradients) {
      context->save_for_backward({q, k, v, beta, o, lse, assignments, weights});
      context->saved_data["call"] = c10::IValue::make_capsule(call);
      context->saved_data["state_tensors"] = static_cast<int64_t>(more.size()) - (call->options.weighted ? 1 : 0);
      context->set_materialize_grads(false);
    }
    return results;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::ovq_attention_backward");
    use_torch_threads();
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &beta = saved[3], &o = saved[4], &lse = saved[5];
    const Tensor &assignments = saved[6], &weights = saved[7];
    const auto capsule = context->saved_data["call"].toCapsule();
    const OvqCall& call = static_cast<const OvqCall&>(*capsule);

    const Tensor d_o = gradients[0].defined() ? with_contiguous_rows(gradients[0]) : at::zeros_like(o);
    // Gradients of the final states count only where there are initial ones or a fresh start: both are given to the
    // kernel.
    const std::vector<OvqState> initial = working_states(q, k, v, call);
    std::vector<Tensor> kept;  // what the views below look into
    std::vector<kernels::OvqStateGradients<const float>> d_final;
    const auto view = [&](Tensor gradient) -> kernels::View<const float> {
      if (!gradient.defined() || gradient.numel() == 0) return {};
      if (gradient.dim() == 3) gradient = gradient.unsqueeze(-1);  // counts and pending weights
      kept.push_back(with_contiguous_rows(gradient));
      return state_view_of(kept.back());
    };
    const bool weighted = call.options.weighted;
    const size_t per_state = StateTensors::count(call.options);
    for (size_t i = 1; i + per_state <= gradients.size(); i += per_state) {
      d_final.push_back({view(gradients[i]), view(gradients[i + 1]), view(gradients[i + 2]), view(gradients[i + 3])});
      if (call.options.value_norms) d_final.back().shrinkage = view(gradients[i + per_state - 1]);
      if (!weighted) continue;
      d_final.back().counts = view(gradients[i + 4]);
      d_final.back().pending_weights = view(gradients[i + 5]);
    }
    std::vector<Tensor> d_states;
    std::vector<kernels::OvqStateGradients<float>> d_initial;
    const int64_t state_tensors = context->saved_data["state_tensors"].toInt();
    for (size_t i = 0; i < initial.size() && state_tensors > 0; ++i) {
      const auto gradient_of = [&](const kernels::View<const float>& shape, bool numbers = false) {
        const Tensor d = at::zeros({shape.batch, shape.heads, shape.time, shape.dim}, q.options());
        d_states.push_back(numbers ? d.squeeze(-1) : d);
        return d.numel() > 0 ? state_view_of(d) : kernels::View<float>{};
      };
      const OvqState& state = initial[i];
      d_initial.push_back({gradient_of(state.keys()), gradient_of(state.values()), gradient_of(state.pending_keys()),
                           gradient_of(state.pending_values())});
      if (weighted) {
        d_initial.back().counts = gradient_of(state.real_counts(), true);
        d_initial.back().pending_weights = gradient_of(state.pending_weights(), true);
      }
      if (call.options.value_norms) d_initial.back().shrinkage = gradient_of(state.shrinkage(), true);
    }

    const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
    const Tensor d_beta = empty_output(beta.sizes());
    const Tensor d_weights = weighted ? empty_output(weights.sizes()) : Tensor();
    kernels::ovq_attention_backward(
        call.plan, kernel_inputs(q, k, v, beta, weights, call),
        {.o = view_of(o),
         .lse = view_of(lse),
         .assignments = {assignments.data_ptr<int32_t>(), static_cast<size_t>(assignments.numel())},
         .initial = initial},
        {.d_o = view_of(d_o), .d_final = d_final},
        {.d_q = view_of(d_q),
         .d_k = view_of(d_k),
         .d_v = view_of(d_v),
         .d_beta = span_of(d_beta),
         .d_initial = d_initial,
         .d_weights = weighted ? weight_view_of(d_weights) : kernels::View<float>{}});
    variable_list results = {d_q, d_k, d_v, d_beta};
    if (weighted) results.push_back(d_weights);
    results.insert(results.end(), d_states.begin(), d_states.end());
    results.emplace_back();  // the call
    return results;
  }
};

// States that do not fit the path are told apart here, whatever else is wrong with a call by the plan. With `start` and
// without states the call makes new ones, which the plan knows.
kernels::OvqPlan make_plan(const char* op, const Inputs& in, const OvqOptions& options,
                           const std::vector<StatePtr>& states, bool start) {
  const bool fused = in.path == Path::fused;
  std::vector<kernels::OvqStateInfo> info;
  for (size_t i = 0; i < states.size(); ++i) {
    const State& state = *states[i];
    check(state.fused() == fused, op, "states[", i, "] was made by the ", state.fused() ? "fused" : "plain",
          " path; these inputs take the ", fused ? "fused" : "plain",
          " one (device, dtype, backend or OVQ_FORCE_REFERENCE)");
    if (!fused) {
      const Tensor& keys = state.plain().keys;
      check(keys.scalar_type() == in.q.scalar_type() && keys.device() == in.q.device(), op, "states[", i, "] is ",
            c10::toString(keys.scalar_type()), " on ", keys.device().str(), "; must be ",
            c10::toString(in.q.scalar_type()), " on ", in.q.device().str());
    }
    info.push_back({state.shape(), state.options(), state.position(), state.size()});
  }
  if (start && states.empty()) {
    const int64_t batch = in.cu_seqlens.empty() ? in.q.size(0) : 1;
    info.assign(state_count(in.cu_seqlens), {{batch, in.k.size(2), in.k.size(3), in.v.size(3)}, options});
  }
  const Tensor beta = plan_beta(in);
  const Tensor weights = in.weights.defined() ? in.weights.unsqueeze(-1) : Tensor();
  return kernels::plan_ovq_attention(
      op,
      {.q = plan_view(in, in.q),
       .k = plan_view(in, in.k),
       .v = plan_view(in, in.v),
       .beta = span_of(beta),
       .weights = weights.defined() ? plan_view(in, weights) : kernels::View<const float>{},
       .options = options,
       .cu_seqlens = in.cu_seqlens},
      info);
}

OvqResult run_plain(const Inputs& in, const OvqOptions& options, const std::vector<StatePtr>& states) {
  OvqResult result;
  std::vector<Tensor> parts;
  const int64_t count = state_count(in.cu_seqlens);
  for (int64_t i = 0; i < count; ++i) {
    const auto part = [&](const Tensor& x) {
      return in.cu_seqlens.empty() ? x : x.slice(1, in.cu_seqlens[i], in.cu_seqlens[i + 1]);
    };
    const Tensor q = part(in.q), k = part(in.k), v = part(in.v);
    PlainState state = states.empty() ? PlainState::empty(k, v, options) : states[i]->plain();
    state.options = options;
    PlainResult run = plain_ovq_attention(q, k, v, in.beta, state, options.weighted ? part(in.weights) : Tensor());
    parts.push_back(run.o);
    result.states.push_back(c10::make_intrusive<State>(std::move(run.state)));
  }
  if (parts.empty()) {
    result.o = in.q.new_empty({in.q.size(0), 0, in.q.size(2), in.v.size(3)}, in.dtype);
  } else {
    result.o = (parts.size() == 1 ? parts[0] : at::cat(parts, 1)).to(in.dtype);
  }
  return result;
}

// A state stored as bfloat16 has rounded what it was given: there is nothing to differentiate.
void check_no_gradients(const std::vector<StatePtr>& states, StateDtype new_states) {
  const auto refuse = [](const auto&... what) {
    fail(kOp, what..., " stored as bfloat16, which is for inference; gradients need float32 (or torch.no_grad())");
  };
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i]->dtype() == at::kBFloat16) refuse("states[", i, "] is");
  }
  if (states.empty() && new_states == StateDtype::bfloat16) refuse("the state is to be");
}

OvqResult run_fused_with_states(const Inputs& in, const OvqOptions& options, kernels::OvqPlan plan,
                                const std::vector<StatePtr>& states, StateDtype state_dtype) {
  const OvqCallPtr call = c10::make_intrusive<OvqCall>();
  call->options = options;
  call->cu_seqlens = in.cu_seqlens;
  call->plan = std::move(plan);
  call->state_dtype = state_dtype;
  std::vector<Tensor> more;
  if (options.weighted) more.push_back(in.weights);
  bool gradients = in.q.requires_grad() || in.k.requires_grad() || in.v.requires_grad() || in.beta.requires_grad();
  for (const StatePtr& state : states) {
    call->initial.push_back(state->kernel());
    for (const Tensor& tensor : state->tensors().list()) more.push_back(tensor);
  }
  for (const Tensor& tensor : more) gradients = gradients || tensor.requires_grad();
  call->want_gradients = gradients && at::GradMode::is_enabled();
  if (call->want_gradients) check_no_gradients(states, state_dtype);
  variable_list out = FusedOvqAttentionWithStates::apply(in.q, in.k, in.v, in.beta, at::TensorList(more), call);
  OvqResult result;
  result.o = out[0].to(in.dtype);
  for (size_t i = 0; i < call->final.size(); ++i) {
    StateTensors tracked;
    const size_t per_state = StateTensors::count(options);
    if (call->want_gradients)
      tracked = StateTensors::from(at::TensorList(out).slice(1 + per_state * i, per_state), options);
    result.states.push_back(c10::make_intrusive<State>(call->final[i], std::move(tracked)));
  }
  call->final.clear();
  return result;
}

OvqResult run(const Inputs& in, OvqOptions options, const c10::optional<Tensor>& cu_seqlens,
              const std::vector<StatePtr>& states, bool want_states, StateDtype state_dtype = StateDtype::float32) {
  options.weighted = in.weights.defined();
  if (in.path == Path::fused && !want_states) {
    const Tensor o = FusedOvqAttention::apply(in.q, in.k, in.v, in.beta, optional(in.weights), options, cu_seqlens,
                                              needs_gradient({in.q, in.k, in.v, in.beta, in.weights}));
    return {o.to(in.dtype), {}};
  }
  kernels::OvqPlan plan = make_plan(kOp, in, options, states, want_states);
  if (in.path == Path::meta) {
    check(!want_states, kOp, "meta tensors have no state");
    return {at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options()), {}};
  }
  if (in.path == Path::fused) return run_fused_with_states(in, options, std::move(plan), states, state_dtype);
  check(state_dtype == StateDtype::float32, kOp, "state_dtype is ", name_of(state_dtype),
        "; these inputs take the plain path (device, dtype, backend or OVQ_FORCE_REFERENCE), which has no such states");
  return run_plain(in, options, states);
}

}  // namespace

Tensor ovq_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, const OvqOptions& options,
                     const c10::optional<Tensor>& cu_seqlens, const c10::optional<Tensor>& weights, Backend backend) {
  return run(make_inputs(kOp, q, k, v, beta, cu_seqlens, weights, backend), options, cu_seqlens, {}, false).o;
}

OvqResult ovq_attention_with_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                   const OvqOptions& options, const c10::optional<Tensor>& cu_seqlens,
                                   const std::vector<StatePtr>& states, const c10::optional<Tensor>& weights,
                                   Backend backend, StateDtype state_dtype) {
  return run(make_inputs(kOp, q, k, v, beta, cu_seqlens, weights, backend), options, cu_seqlens, states, true,
             state_dtype);
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
  OvqOptions options = options_of(op, states);
  const Backend backend = states.empty() || states.front()->fused() ? Backend::automatic : Backend::composed;
  const Inputs in = make_inputs(op, q, k, v, beta, cu_seqlens, weights, backend);
  check(in.path != Path::meta, op, "meta tensors have no state");
  options.weighted = in.weights.defined();
  OvqCall call;
  call.options = options;
  call.cu_seqlens = in.cu_seqlens;
  call.plan = make_plan(op, in, options, states, false);
  const int64_t expected = state_count(in.cu_seqlens);
  check(static_cast<int64_t>(states.size()) == expected, op, "states has ", states.size(), " elements; must be ",
        expected, in.cu_seqlens.empty() ? ", for the whole batch" : ", one per packed sequence");
  for (size_t i = 0; i < states.size(); ++i) {
    const auto first = std::find(states.begin(), states.end(), states[i]) - states.begin();
    check(first == static_cast<int64_t>(i), op, "states[", i, "] is states[", first, "]; a step needs different ones");
  }
  if (states.empty()) return in.q.new_empty({in.q.size(0), 0, in.q.size(2), in.v.size(3)}, in.dtype);
  if (in.path == Path::plain) {
    const OvqResult result = run_plain(in, options, states);
    for (size_t i = 0; i < states.size(); ++i) states[i]->set_plain(result.states[i]->plain());
    return result.o;
  }
  use_torch_threads();
  const Tensor o = empty_output({q.size(0), q.size(1), q.size(2), v.size(3)});
  // Moved into a row for the kernel and back: the call needs them side by side, and throws only before it changes them.
  std::vector<OvqState> row;
  for (const StatePtr& state : states) row.push_back(std::move(state->own_kernel()));
  const auto put_back = [&] {
    for (size_t i = 0; i < states.size(); ++i) states[i]->own_kernel() = std::move(row[i]);
  };
  try {
    kernels::ovq_attention_forward(call.plan, kernel_inputs(in.q, in.k, in.v, in.beta, in.weights, call),
                                   {.o = view_of(o), .lse = {}, .assignments = {}}, row);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return o.to(in.dtype);
}

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
