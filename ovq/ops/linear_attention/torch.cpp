#include "ovq/ops/linear_attention/torch.h"

#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "ovq/ops/linear_attention/linear_attention.h"
#include "ovq/ops/recurrence/torch_sequences.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLinearAttention = "linear_attention";

kernels::LinearAttentionInputs linear_views(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                            const Tensor& state, double scale, const std::vector<int64_t>& borders) {
  return {.q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .g = gate_view_of(g),
          .scale = static_cast<float>(scale),
          .state = borders.empty() ? state_view_of(state) : kernels::View<float>(),
          .cu_seqlens = borders};
}

std::tuple<Tensor, Tensor, Tensor> linear_attention_forward(const Tensor& q_any, const Tensor& k_any,
                                                            const Tensor& v_any, const Tensor& g,
                                                            const Tensor& state_any,
                                                            const c10::optional<Tensor>& starts, double scale) {
  RECORD_USER_SCOPE("ovq::linear_attention_forward");
  use_torch_threads();
  const Tensor q = with_contiguous_rows(q_any), k = with_contiguous_rows(k_any), v = with_contiguous_rows(v_any);
  const Tensor state = with_contiguous_rows(state_any);
  const std::vector<int64_t> borders = borders_of(kLinearAttention, or_undefined(starts), q.size(1));
  const kernels::LinearAttentionInputs in = linear_views(q, k, v, g, state, scale, borders);
  const int64_t floats = kernels::saved_floats(in);
  const Tensor o = empty_output(v.sizes()), after = state_after(state, borders), saved = saved_memory(floats, borders);
  kernels::linear_attention_forward(
      in, {.o = view_of(o), .state = optional_state_view_of(after), .saved = span_of(saved).first(floats)});
  return {o, defined_or_absent(after, v), saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> linear_attention_backward(
    const c10::optional<Tensor>& d_o, const c10::optional<Tensor>& d_after, const Tensor& q_any, const Tensor& k_any,
    const Tensor& v_any, const Tensor& g, const Tensor& state_any, const Tensor& saved,
    const c10::optional<Tensor>& starts, double scale, bool wants_d_state) {
  RECORD_USER_SCOPE("ovq::linear_attention_backward");
  use_torch_threads();
  const Tensor q = with_contiguous_rows(q_any), k = with_contiguous_rows(k_any), v = with_contiguous_rows(v_any);
  const Tensor state = with_contiguous_rows(state_any), d_rows = rows_or_zeros(d_o, v), d_last = rows_or_none(d_after);
  const std::vector<int64_t> borders = borders_of(kLinearAttention, or_undefined(starts), q.size(1));
  const kernels::LinearAttentionInputs in = linear_views(q, k, v, g, state, scale, borders);
  const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
  const Tensor d_g = at::empty(g.sizes(), g.options());
  const Tensor d_state = wants_d_state ? at::empty(state.sizes(), state.options()) : Tensor();
  kernels::linear_attention_backward(in, span_of(saved).first(kernels::saved_floats(in)), view_of(d_rows),
                                     optional_state_view_of(d_last),
                                     {.d_q = view_of(d_q),
                                      .d_k = view_of(d_k),
                                      .d_v = view_of(d_v),
                                      .d_g = gate_view_of(d_g),
                                      .d_state = optional_state_view_of(d_state)});
  return {d_q, d_k, d_v, d_g, defined_or_absent(d_state, v)};
}

int64_t linear_attention_saved(int64_t heads, int64_t key_dim, int64_t value_dim) {
  const kernels::View<const float> keys = no_tokens(heads, key_dim);
  return kernels::saved_floats(
      kernels::LinearAttentionInputs{.q = keys, .k = keys, .v = no_tokens(heads, value_dim), .g = no_tokens(heads, 1)});
}

class LinearAttentionFunction : public OnceDifferentiable<LinearAttentionFunction> {
 public:
  static constexpr const char* kOp = kLinearAttention;

  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& state, double scale,
                               const c10::optional<Tensor>& starts) {
    static const auto op = dispatched<decltype(linear_attention_forward)>("ovq::linear_attention_forward");
    const auto [o, after, saved] = call_dispatched(op, q, k, v, g, state, starts, scale);
    context->save_for_backward({q, k, v, g, state, saved, or_undefined(starts)});
    context->saved_data["scale"] = scale;
    context->saved_data["d_state"] = !starts && state.requires_grad();
    context->set_materialize_grads(false);
    return with_state(o, after, starts.has_value());
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(linear_attention_backward)>("ovq::linear_attention_backward");
    const variable_list s = context->get_saved_variables();
    const bool wants_d_state = context->saved_data["d_state"].toBool();
    const auto [d_q, d_k, d_v, d_g, d_state] =
        call_dispatched(op, gradient_at(gradients, 0), gradient_at(gradients, 1), s[0], s[1], s[2], s[3], s[4], s[5],
                        optional(s[6]), context->saved_data["scale"].toDouble(), wants_d_state);
    return {d_q, d_k, d_v, d_g, wants_d_state ? d_state : Tensor(), Tensor(), Tensor()};
  }
};

OutputAndState linear_attention_op(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                                   c10::optional<double> scale, const OptionalTensor& initial_state, bool return_state,
                                   const OptionalTensor& cu_seqlens) {
  const Tensor gate = or_undefined(g);
  check_arguments(kLinearAttention, {{"q", q},
                                     {"k", k, kLikeFirst},
                                     {"v", v, kLikeFirst},
                                     {"g", gate, kOptional},
                                     {"initial_state", or_undefined(initial_state), kOptional}});
  check_recurrence(kLinearAttention, q, k, v);
  if (gate.defined()) check_gate(kLinearAttention, "g", gate, q);
  const Sequences sequences{kLinearAttention, q,
                            initial_state,    cu_seqlens,
                            return_state,     {fixed_size(q, 2), fixed_size(q, 3), fixed_size(v, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return linear_attention({.q = cut(q),
                             .k = cut(k),
                             .v = cut(v),
                             .g = gate.defined() ? cut(gate) : gate,
                             .state = state,
                             .scale = scale,
                             .starts = starts});
  });
}

}  // namespace

RecurrenceResult linear_attention(const LinearAttentionInputs& in) {
  check_recurrence(kLinearAttention, in.q, in.k, in.v);
  if (in.g.defined()) check_gate(kLinearAttention, "g", in.g, in.q);
  check_has_kernels(kLinearAttention, "q", in.q);
  const Tensor state = state_before(kLinearAttention, in.state, in.q, in.q.sym_size(3), in.v.sym_size(3));
  const Tensor q = float_rows(in.q), k = float_rows(in.k), v = float_rows(in.v);
  const Tensor g = in.g.defined() ? in.g.to(at::kFloat) : at::zeros_symint(q.sym_sizes().slice(0, 3), q.options());
  const double scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(fixed_size(q, 3))));
  RecurrenceResult result;
  if (is_empty(q) || is_empty(v)) {
    result = without_tokens(v, state);
  } else if (is_recorded({q, k, v, g, state, in.starts})) {
    result = result_of(LinearAttentionFunction::apply(q, k, v, g, state, scale, packed_starts(in.starts)));
  } else {
    const std::vector<int64_t> borders = borders_of(kLinearAttention, in.starts, q.size(1));
    use_torch_threads();
    result = {.o = empty_output(v.sizes()), .state = next_state(q, state, borders)};
    kernels::linear_attention_forward(
        linear_views(q, k, v, g, state, scale, borders),
        {.o = view_of(result.o), .state = optional_state_view_of(result.state), .saved = {}});
  }
  result.o = result.o.to(in.q.scalar_type());
  return result;
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("linear_attention(Tensor q, Tensor k, Tensor v, Tensor? g=None, float? scale=None, " OVQ_SEQUENCES
              ") -> (Tensor, Tensor?)",
              linear_attention_op);
#define OVQ_INPUTS "Tensor q, Tensor k, Tensor v, Tensor g, Tensor state"
  library.def("linear_attention_forward(" OVQ_INPUTS
              ", Tensor? starts, float scale) -> (Tensor o, Tensor after, Tensor saved)",
              torch::dispatch(c10::DispatchKey::CPU, linear_attention_forward));
  library.def("linear_attention_backward(Tensor? d_o, Tensor? d_after, " OVQ_INPUTS
              ", Tensor saved, Tensor? starts, float scale, bool wants_d_state) -> (Tensor d_q, Tensor d_k, Tensor "
              "d_v, Tensor d_g, Tensor d_state)",
              torch::dispatch(c10::DispatchKey::CPU, linear_attention_backward));
  library.def("linear_attention_saved(int heads, int key_dim, int value_dim) -> int", linear_attention_saved);
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
