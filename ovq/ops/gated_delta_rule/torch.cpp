#include "ovq/ops/gated_delta_rule/torch.h"

#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "ovq/ops/gated_delta_rule/gated_delta_rule.h"
#include "ovq/ops/recurrence/torch_sequences.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGatedDeltaRule = "gated_delta_rule";

kernels::GatedDeltaRuleInputs delta_views(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                          const Tensor& beta, const Tensor& state,
                                          const std::vector<int64_t>& borders) {
  return {.q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .g = gate_view_of(g),
          .beta = gate_view_of(beta),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(3)))),
          .state = borders.empty() ? state_view_of(state) : kernels::View<float>(),
          .cu_seqlens = borders};
}

std::tuple<Tensor, Tensor, Tensor> gated_delta_rule_forward(const Tensor& q_any, const Tensor& k_any,
                                                            const Tensor& v_any, const Tensor& g, const Tensor& beta,
                                                            const Tensor& state_any,
                                                            const c10::optional<Tensor>& starts) {
  RECORD_USER_SCOPE("ovq::gated_delta_rule_forward");
  use_torch_threads();
  const Tensor q = with_contiguous_rows(q_any), k = with_contiguous_rows(k_any), v = with_contiguous_rows(v_any);
  const Tensor state = with_contiguous_rows(state_any);
  const std::vector<int64_t> borders = borders_of(kGatedDeltaRule, or_undefined(starts), q.size(1));
  const kernels::GatedDeltaRuleInputs in = delta_views(q, k, v, g, beta, state, borders);
  const int64_t floats = kernels::saved_floats(in);
  const Tensor o = empty_output(v.sizes()), after = state_after(state, borders), saved = saved_memory(floats, borders);
  kernels::gated_delta_rule_forward(
      in, {.o = view_of(o), .state = optional_state_view_of(after), .saved = span_of(saved).first(floats)});
  return {o, defined_or_absent(after, v), saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_delta_rule_backward(
    const c10::optional<Tensor>& d_o, const c10::optional<Tensor>& d_after, const Tensor& q_any, const Tensor& k_any,
    const Tensor& v_any, const Tensor& g, const Tensor& beta, const Tensor& state_any, const Tensor& saved,
    const c10::optional<Tensor>& starts, bool wants_d_state) {
  RECORD_USER_SCOPE("ovq::gated_delta_rule_backward");
  use_torch_threads();
  const Tensor q = with_contiguous_rows(q_any), k = with_contiguous_rows(k_any), v = with_contiguous_rows(v_any);
  const Tensor state = with_contiguous_rows(state_any), d_rows = rows_or_zeros(d_o, v), d_last = rows_or_none(d_after);
  const std::vector<int64_t> borders = borders_of(kGatedDeltaRule, or_undefined(starts), q.size(1));
  const kernels::GatedDeltaRuleInputs in = delta_views(q, k, v, g, beta, state, borders);
  const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
  const Tensor d_g = at::empty(g.sizes(), g.options()), d_beta = at::empty(g.sizes(), g.options());
  const Tensor d_state = wants_d_state ? at::empty(state.sizes(), state.options()) : Tensor();
  kernels::gated_delta_rule_backward(in, span_of(saved).first(kernels::saved_floats(in)), view_of(d_rows),
                                     optional_state_view_of(d_last),
                                     {.d_q = view_of(d_q),
                                      .d_k = view_of(d_k),
                                      .d_v = view_of(d_v),
                                      .d_g = gate_view_of(d_g),
                                      .d_beta = gate_view_of(d_beta),
                                      .d_state = optional_state_view_of(d_state)});
  return {d_q, d_k, d_v, d_g, d_beta, defined_or_absent(d_state, v)};
}

int64_t gated_delta_rule_saved(int64_t heads, int64_t key_dim, int64_t value_dim) {
  const kernels::View<const float> keys = no_tokens(heads, key_dim), gate = no_tokens(heads, 1);
  return kernels::saved_floats({.q = keys, .k = keys, .v = no_tokens(heads, value_dim), .g = gate, .beta = gate});
}

class GatedDeltaRuleFunction : public OnceDifferentiable<GatedDeltaRuleFunction> {
 public:
  static constexpr const char* kOp = kGatedDeltaRule;

  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& beta, const Tensor& state,
                               const c10::optional<Tensor>& starts) {
    static const auto op = dispatched<decltype(gated_delta_rule_forward)>("ovq::gated_delta_rule_forward");
    const auto [o, after, saved] = call_dispatched(op, q, k, v, g, beta, state, starts);
    context->save_for_backward({q, k, v, g, beta, state, saved, or_undefined(starts)});
    context->saved_data["d_state"] = !starts && state.requires_grad();
    context->set_materialize_grads(false);
    return with_state(o, after, starts.has_value());
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(gated_delta_rule_backward)>("ovq::gated_delta_rule_backward");
    const variable_list s = context->get_saved_variables();
    const bool wants_d_state = context->saved_data["d_state"].toBool();
    const auto [d_q, d_k, d_v, d_g, d_beta, d_state] =
        call_dispatched(op, gradient_at(gradients, 0), gradient_at(gradients, 1), s[0], s[1], s[2], s[3], s[4], s[5],
                        s[6], optional(s[7]), wants_d_state);
    return {d_q, d_k, d_v, d_g, d_beta, wants_d_state ? d_state : Tensor(), Tensor()};
  }
};

OutputAndState gated_delta_rule_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                   const Tensor& beta, const OptionalTensor& initial_state, bool return_state,
                                   const OptionalTensor& cu_seqlens) {
  check_arguments(kGatedDeltaRule, {{"q", q},
                                    {"k", k, kLikeFirst},
                                    {"v", v, kLikeFirst},
                                    {"g", g},
                                    {"beta", beta},
                                    {"initial_state", or_undefined(initial_state), kOptional}});
  check_recurrence(kGatedDeltaRule, q, k, v);
  check_gate(kGatedDeltaRule, "g", g, q);
  check_gate(kGatedDeltaRule, "beta", beta, q);
  const Sequences sequences{kGatedDeltaRule, q,
                            initial_state,   cu_seqlens,
                            return_state,    {fixed_size(q, 2), fixed_size(q, 3), fixed_size(v, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return gated_delta_rule(
        {.q = cut(q), .k = cut(k), .v = cut(v), .g = cut(g), .beta = cut(beta), .state = state, .starts = starts});
  });
}

}  // namespace

RecurrenceResult gated_delta_rule(const GatedDeltaRuleInputs& in) {
  check_recurrence(kGatedDeltaRule, in.q, in.k, in.v);
  check_gate(kGatedDeltaRule, "g", in.g, in.q);
  check_gate(kGatedDeltaRule, "beta", in.beta, in.q);
  check_has_kernels(kGatedDeltaRule, "q", in.q);
  const Tensor state = state_before(kGatedDeltaRule, in.state, in.q, in.q.sym_size(3), in.v.sym_size(3));
  const Tensor q = float_rows(in.q), k = float_rows(in.k), v = float_rows(in.v);
  const Tensor g = in.g.to(at::kFloat), beta = in.beta.to(at::kFloat);
  RecurrenceResult result;
  if (is_empty(q) || is_empty(v)) {
    result = without_tokens(v, state);
  } else if (is_recorded({q, k, v, g, beta, state, in.starts})) {
    result = result_of(GatedDeltaRuleFunction::apply(q, k, v, g, beta, state, packed_starts(in.starts)));
  } else {
    const std::vector<int64_t> borders = borders_of(kGatedDeltaRule, in.starts, q.size(1));
    use_torch_threads();
    result = {.o = empty_output(v.sizes()), .state = next_state(q, state, borders)};
    kernels::gated_delta_rule_forward(
        delta_views(q, k, v, g, beta, state, borders),
        {.o = view_of(result.o), .state = optional_state_view_of(result.state), .saved = {}});
  }
  result.o = result.o.to(in.q.scalar_type());
  return result;
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, " OVQ_SEQUENCES
              ") -> (Tensor, Tensor?)",
              gated_delta_rule_op);
#define OVQ_INPUTS "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state"
  library.def("gated_delta_rule_forward(" OVQ_INPUTS ", Tensor? starts) -> (Tensor o, Tensor after, Tensor saved)",
              torch::dispatch(c10::DispatchKey::CPU, gated_delta_rule_forward));
  library.def("gated_delta_rule_backward(Tensor? d_o, Tensor? d_after, " OVQ_INPUTS
              ", Tensor saved, Tensor? starts, bool wants_d_state) -> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_g, "
              "Tensor d_beta, Tensor d_state)",
              torch::dispatch(c10::DispatchKey::CPU, gated_delta_rule_backward));
  library.def("gated_delta_rule_saved(int heads, int key_dim, int value_dim) -> int", gated_delta_rule_saved);
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
