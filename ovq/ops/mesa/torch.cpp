#include "ovq/ops/mesa/torch.h"

#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "ovq/ops/mesa/mesa.h"
#include "ovq/ops/recurrence/torch_sequences.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kMesa = "mesa";

// Tensors that the kernels take: q, k, v, g, beta, lambda and the state.
using MesaTensors = std::array<Tensor, 7>;

kernels::MesaInputs mesa_views(const MesaTensors& t, int64_t iterations, const std::vector<int64_t>& borders) {
  const auto& [q, k, v, g, beta, lambda, state] = t;
  return {.q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .g = gate_view_of(g),
          .beta = gate_view_of(beta),
          .lambda = span_of(lambda),
          .iterations = iterations,
          .state = borders.empty() ? state_view_of(state) : kernels::View<float>(),
          .cu_seqlens = borders};
}

MesaTensors mesa_rows(const MesaTensors& t) {
  const auto& [q, k, v, g, beta, lambda, state] = t;
  return {with_contiguous_rows(q), with_contiguous_rows(k),    with_contiguous_rows(v), g, beta,
          lambda.contiguous(),     with_contiguous_rows(state)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mesa_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                        const Tensor& g, const Tensor& beta, const Tensor& lambda,
                                                        const Tensor& state, const c10::optional<Tensor>& starts,
                                                        int64_t iterations) {
  RECORD_USER_SCOPE("ovq::mesa_forward");
  use_torch_threads();
  const MesaTensors tensors = mesa_rows({q, k, v, g, beta, lambda, state});
  const std::vector<int64_t> borders = borders_of(kMesa, or_undefined(starts), q.size(1));
  const kernels::MesaInputs in = mesa_views(tensors, iterations, borders);
  const int64_t floats = kernels::saved_floats(in);
  const Tensor o = empty_output(v.sizes()), solution = empty_output(q.sizes());
  const Tensor after = state_after(tensors.back(), borders), saved = saved_memory(floats, borders);
  kernels::mesa_forward(in, {.o = view_of(o),
                             .solution = view_of(solution),
                             .state = optional_state_view_of(after),
                             .saved = span_of(saved).first(floats)});
  return {o, defined_or_absent(after, v), solution, saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> mesa_backward(
    const c10::optional<Tensor>& d_o, const c10::optional<Tensor>& d_after, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& g, const Tensor& beta, const Tensor& lambda, const Tensor& state,
    const Tensor& solution_any, const Tensor& saved, const c10::optional<Tensor>& starts, int64_t iterations,
    bool wants_d_state) {
  RECORD_USER_SCOPE("ovq::mesa_backward");
  use_torch_threads();
  const MesaTensors tensors = mesa_rows({q, k, v, g, beta, lambda, state});
  const std::vector<int64_t> borders = borders_of(kMesa, or_undefined(starts), q.size(1));
  const kernels::MesaInputs in = mesa_views(tensors, iterations, borders);
  const Tensor solution = with_contiguous_rows(solution_any);
  const Tensor d_rows = rows_or_zeros(d_o, v), d_last = rows_or_none(d_after);
  const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
  const Tensor d_g = at::empty(g.sizes(), g.options()), d_beta = at::empty(g.sizes(), g.options());
  const Tensor d_lambda = at::empty(lambda.sizes(), lambda.options());
  const Tensor d_state = wants_d_state ? at::empty(state.sizes(), state.options()) : Tensor();
  kernels::mesa_backward(in, {.solution = view_of(solution), .states = span_of(saved).first(kernels::saved_floats(in))},
                         view_of(d_rows), optional_state_view_of(d_last),
                         {.d_q = view_of(d_q),
                          .d_k = view_of(d_k),
                          .d_v = view_of(d_v),
                          .d_g = gate_view_of(d_g),
                          .d_beta = gate_view_of(d_beta),
                          .d_lambda = span_of(d_lambda),
                          .d_state = optional_state_view_of(d_state)});
  return {d_q, d_k, d_v, d_g, d_beta, d_lambda, defined_or_absent(d_state, v)};
}

int64_t mesa_saved(int64_t heads, int64_t key_dim, int64_t value_dim) {
  const kernels::View<const float> keys = no_tokens(heads, key_dim), gate = no_tokens(heads, 1);
  const std::vector<float> lambda(heads * key_dim);
  return kernels::saved_floats({.q = keys,
                                .k = keys,
                                .v = no_tokens(heads, value_dim),
                                .g = gate,
                                .beta = gate,
                                .lambda = lambda,
                                .iterations = 1});
}

class MesaFunction : public OnceDifferentiable<MesaFunction> {
 public:
  static constexpr const char* kOp = kMesa;

  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& beta, const Tensor& lambda, const Tensor& state,
                               int64_t iterations, const c10::optional<Tensor>& starts) {
    static const auto op = dispatched<decltype(mesa_forward)>("ovq::mesa_forward");
    const auto [o, after, solution, saved] = call_dispatched(op, q, k, v, g, beta, lambda, state, starts, iterations);
    context->save_for_backward({q, k, v, g, beta, lambda, state, solution, saved, or_undefined(starts)});
    context->saved_data["iterations"] = iterations;
    context->saved_data["d_state"] = !starts && state.requires_grad();
    context->set_materialize_grads(false);
    return with_state(o, after, starts.has_value());
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(mesa_backward)>("ovq::mesa_backward");
    const variable_list s = context->get_saved_variables();
    const bool wants_d_state = context->saved_data["d_state"].toBool();
    const auto [d_q, d_k, d_v, d_g, d_beta, d_lambda, d_state] =
        call_dispatched(op, gradient_at(gradients, 0), gradient_at(gradients, 1), s[0], s[1], s[2], s[3], s[4], s[5],
                        s[6], s[7], s[8], optional(s[9]), context->saved_data["iterations"].toInt(), wants_d_state);
    return {d_q, d_k, d_v, d_g, d_beta, d_lambda, wants_d_state ? d_state : Tensor(), Tensor(), Tensor()};
  }
};

OutputAndState mesa_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                       const Tensor& lambda, const OptionalTensor& initial_state, bool return_state,
                       const OptionalTensor& cu_seqlens, int64_t iterations) {
  check_arguments(kMesa, {{"q", q},
                          {"k", k, kLikeFirst},
                          {"v", v, kLikeFirst},
                          {"g", g},
                          {"beta", beta},
                          {"lambda", lambda},
                          {"initial_state", or_undefined(initial_state), kOptional}});
  check_recurrence(kMesa, q, k, v);
  check_gate(kMesa, "g", g, q);
  check_gate(kMesa, "beta", beta, q);
  const Sequences sequences{kMesa,         q,
                            initial_state, cu_seqlens,
                            return_state,  {fixed_size(q, 2), fixed_size(q, 3), fixed_size(q, 3) + fixed_size(v, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return mesa({.q = cut(q),
                 .k = cut(k),
                 .v = cut(v),
                 .g = cut(g),
                 .beta = cut(beta),
                 .lambda = lambda,
                 .state = state,
                 .iterations = iterations,
                 .starts = starts});
  });
}

}  // namespace

RecurrenceResult mesa(const MesaInputs& in) {
  check_recurrence(kMesa, in.q, in.k, in.v);
  check_gate(kMesa, "g", in.g, in.q);
  check_gate(kMesa, "beta", in.beta, in.q);
  const int64_t heads = fixed_size(in.q, 2), dim = fixed_size(in.q, 3);
  check(in.lambda.sym_sizes() == c10::SymIntArrayRef({heads, dim}), kMesa, "lambda has shape ", ShapeText{in.lambda},
        "; must be [", heads, ", ", dim, "]");
  check(in.iterations >= 1, kMesa, "iterations is ", in.iterations, "; must be at least 1");
  check_has_kernels(kMesa, "q", in.q);
  const Tensor state = state_before(kMesa, in.state, in.q, dim, in.v.sym_size(3) + dim);
  const Tensor q = float_rows(in.q), k = float_rows(in.k), v = float_rows(in.v);
  const Tensor g = in.g.to(at::kFloat), beta = in.beta.to(at::kFloat), lambda = in.lambda.to(at::kFloat).contiguous();
  RecurrenceResult result;
  if (is_empty(q) || is_empty(v)) {
    result = without_tokens(v, state);
  } else if (is_recorded({q, k, v, g, beta, lambda, state, in.starts})) {
    result = result_of(MesaFunction::apply(q, k, v, g, beta, lambda, state, in.iterations, packed_starts(in.starts)));
  } else {
    const std::vector<int64_t> borders = borders_of(kMesa, in.starts, q.size(1));
    use_torch_threads();
    result = {.o = empty_output(v.sizes()), .state = next_state(q, state, borders)};
    kernels::mesa_forward(
        mesa_views({q, k, v, g, beta, lambda, state}, in.iterations, borders),
        {.o = view_of(result.o), .solution = {}, .state = optional_state_view_of(result.state), .saved = {}});
  }
  result.o = result.o.to(in.q.scalar_type());
  return result;
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("mesa(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor lambda_, " OVQ_SEQUENCES
              ", int iterations=30) -> (Tensor, Tensor?)",
              mesa_op);
#define OVQ_INPUTS "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor lambda_, Tensor state"
  library.def("mesa_forward(" OVQ_INPUTS
              ", Tensor? starts, int iterations) -> (Tensor o, Tensor after, Tensor solution, Tensor saved)",
              torch::dispatch(c10::DispatchKey::CPU, mesa_forward));
  library.def("mesa_backward(Tensor? d_o, Tensor? d_after, " OVQ_INPUTS
              ", Tensor solution, Tensor saved, Tensor? starts, int iterations, bool wants_d_state) -> (Tensor d_q, "
              "Tensor d_k, Tensor d_v, Tensor d_g, Tensor d_beta, Tensor d_lambda, Tensor d_state)",
              torch::dispatch(c10::DispatchKey::CPU, mesa_backward));
  library.def("mesa_saved(int heads, int key_dim, int value_dim) -> int", mesa_saved);
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
