// ovq_attention_with_state: autograd through the states, too.
#include <utility>

#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/ovq_attention/torch_call.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/packed.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::OvqOptions;
using kernels::OvqState;
using kernels::StateDtype;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A call, what it starts from and what it makes. Autograd keeps it without the inputs, which it saves itself.
struct CallWithStates : torch::CustomClassHolder {
  OvqCall call;
  std::vector<std::shared_ptr<OvqState>> initial;  // empty: from the start
  std::vector<std::shared_ptr<OvqState>> final;    // set by forward
  StateDtype state_dtype = StateDtype::float32;    // of new ones
  bool keep = false;                               // for backward
};
using CallPtr = c10::intrusive_ptr<CallWithStates>;

// States for the kernels to work on: copies of the initial ones, or new.
std::vector<OvqState> working_states(const OvqCall& call, const CallWithStates& with) {
  std::vector<OvqState> states;
  for (const auto& state : with.initial) states.push_back(*state);
  if (states.empty()) states.assign(call.states(), OvqState(call.state_shape(), call.options, with.state_dtype));
  return states;
}

// Gradients by states, which come and go as lists of tensors: those of one state after those of another.
class StateGradients {
 public:
  explicit StateGradients(const OvqOptions& options) : options_(options), per_state_(StateTensors::count(options)) {}

  // By the final states, as the kernels read them; undefined ones are zero.
  std::vector<kernels::OvqStateGradients<const float>> read(at::TensorList gradients) {
    std::vector<kernels::OvqStateGradients<const float>> all;
    for (size_t i = 0; i + per_state_ <= gradients.size(); i += per_state_) {
      const auto view = [&](size_t part) { return read_view(gradients[i + part]); };
      all.push_back({view(0), view(1), view(2), view(3)});
      if (options_.value_norms) all.back().shrinkage = view(per_state_ - 1);
      if (!options_.weighted) continue;
      all.back().counts = view(4);
      all.back().pending_weights = view(5);
    }
    return all;
  }

  // By the tensors of the initial states: zeros, appended to `gradients`, for the kernels to write.
  std::vector<kernels::OvqStateGradients<float>> make(const std::vector<OvqState>& initial, variable_list& gradients) {
    std::vector<kernels::OvqStateGradients<float>> all;
    for (const OvqState& state : initial) {
      const kernels::OvqShape& s = state.shape();
      const auto fresh = [&](int64_t rows, int64_t dim) {
        const Tensor d = at::zeros({s.batch, s.kv_heads, rows, dim});
        gradients.push_back(d);
        return d.numel() > 0 ? state_view_of(d) : kernels::View<float>{};
      };
      const auto fresh_weights = [&](int64_t rows) {
        const auto view = fresh(rows, 1);
        gradients.back() = gradients.back().squeeze(-1);
        return view;
      };
      const int64_t size = state.size(), pending = state.pending();
      auto& views = all.emplace_back();
      views.keys = fresh(size, s.key_dim);
      views.values = fresh(size, s.value_dim);
      views.pending_keys = fresh(pending, s.key_dim);
      views.pending_values = fresh(pending, s.value_dim);
      if (options_.weighted) {
        views.counts = fresh_weights(size);
        views.pending_weights = fresh_weights(pending);
      }
      if (options_.value_norms) views.shrinkage = fresh_weights(size);
    }
    return all;
  }

 private:
  kernels::View<const float> read_view(Tensor gradient) {
    if (!gradient.defined() || gradient.numel() == 0) return {};
    if (gradient.dim() == 3) gradient = gradient.unsqueeze(-1);  // of counts, pending weights and shrinkage
    kept_.push_back(with_contiguous_rows(gradient));
    return state_view_of(kept_.back());
  }

  const OvqOptions& options_;
  size_t per_state_;
  std::vector<Tensor> kept_;  // what the views look into
};

class OvqAttentionWithStates : public OnceDifferentiable<OvqAttentionWithStates> {
 public:
  static constexpr const char* kOp = kOvqAttention;

  // `more`: the weights, if there are any, then the tensors of the incoming states. Outputs: o, then the tensors of
  // each state.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& beta, at::TensorList more, const CallPtr& with) {
    const bool weighted = with->call.options.weighted;
    const OvqCall call = call_of(*with, {q, k, v, beta, weighted ? more[0] : Tensor()});
    std::vector<OvqState> states = working_states(call, *with);
    const auto [o, lse, assignments] = run_forward(call, with->keep, states);
    variable_list results = {o};
    for (OvqState& state : states) {
      with->final.push_back(std::make_shared<OvqState>(std::move(state)));
      for (const Tensor& x : views_of(with->final.back()).list()) results.push_back(x);
    }
    if (with->keep) {
      context->save_for_backward({q, k, v, beta, call.in.weights, o, lse, assignments});
      context->saved_data["call"] = c10::IValue::make_capsule(with);
      context->set_materialize_grads(false);
    }
    return results;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& with = static_cast<const CallWithStates&>(*capsule);
    const OvqCall call = call_of(with, {saved[0], saved[1], saved[2], saved[3], saved[4]});
    const Tensor d_o = gradients[0].defined() ? gradients[0] : at::zeros_like(saved[5]);
    // The kernel wants the states before the call even for a fresh start: gradients of final states count by them.
    const std::vector<OvqState> initial = working_states(call, with);
    StateGradients states(call.options);
    const auto d_final = states.read(at::TensorList(gradients).slice(1));
    variable_list d_states;
    std::vector<kernels::OvqStateGradients<float>> d_initial;
    if (!with.initial.empty()) d_initial = states.make(initial, d_states);
    const OvqGradients d = run_backward(call, {.o = saved[5], .lse = saved[6], .assignments = saved[7]}, d_o,
                                        {.initial = initial, .d_final = d_final, .d_initial = d_initial});
    variable_list results = {d.d_q, d.d_k, d.d_v, d.d_beta};
    if (d.d_weights.defined()) results.push_back(d.d_weights);
    results.insert(results.end(), d_states.begin(), d_states.end());
    results.emplace_back();  // the call
    return results;
  }

 private:
  static OvqCall call_of(const CallWithStates& with, Inputs in) {
    return {
        .in = std::move(in), .options = with.call.options, .cu_seqlens = with.call.cu_seqlens, .plan = with.call.plan};
  }
};

// A state stored as bfloat16 has rounded what it was given: there is nothing to differentiate.
void check_no_gradients(const std::vector<StatePtr>& states, StateDtype new_states) {
  const auto refuse = [](const auto&... what) {
    fail(kOvqAttention, what...,
         " stored as bfloat16, which is for inference; gradients need float32 (or torch.no_grad())");
  };
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i]->dtype() == at::kBFloat16) refuse("states[", i, "] is");
  }
  if (states.empty() && new_states == StateDtype::bfloat16) refuse("the state is to be");
}

}  // namespace

OvqResult ovq_attention_with_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                   const OvqOptions& options, const c10::optional<Tensor>& cu_seqlens,
                                   const std::vector<StatePtr>& states, const c10::optional<Tensor>& weights,
                                   StateDtype state_dtype) {
  const Inputs in = make_inputs(kOvqAttention, q, k, v, beta, weights);
  const CallPtr with = c10::make_intrusive<CallWithStates>();
  with->state_dtype = state_dtype;
  OvqCall call{.in = in, .options = options, .cu_seqlens = offsets_of(kOvqAttention, cu_seqlens), .plan = {}};
  call.options.weighted = in.weights.defined();
  std::vector<kernels::OvqStateInfo> info = info_of(states);
  if (states.empty()) info.assign(call.states(), {.shape = call.state_shape(), .options = call.options});
  call.plan = kernels::plan_ovq_attention(kOvqAttention, call.inputs(), info);

  std::vector<Tensor> more;
  if (in.weights.defined()) more.push_back(in.weights);
  for (const StatePtr& state : states) {
    with->initial.push_back(state->kernel());
    for (const Tensor& tensor : state->tensors().list()) more.push_back(tensor);
  }
  with->keep = needs_gradient({in.q, in.k, in.v, in.beta}) || needs_gradient(more);
  if (with->keep) check_no_gradients(states, state_dtype);
  call.in = {};
  with->call = std::move(call);
  const variable_list out = OvqAttentionWithStates::apply(in.q, in.k, in.v, in.beta, at::TensorList(more), with);

  OvqResult result{.o = out[0].to(in.dtype), .states = {}};
  const size_t per_state = StateTensors::count(with->call.options);
  for (size_t i = 0; i < with->final.size(); ++i) {
    StateTensors tracked;
    if (with->keep) {
      tracked = StateTensors::from(at::TensorList(out).slice(1 + per_state * i, per_state), with->call.options);
    }
    result.states.push_back(c10::make_intrusive<State>(with->final[i], std::move(tracked)));
  }
  with->final.clear();
  return result;
}

}  // namespace ovq::ops
