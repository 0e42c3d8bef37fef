#include "ovq/ops/ssd/torch.h"

#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "ovq/ops/recurrence/torch_sequences.h"
#include "ovq/ops/ssd/ssd.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kSsd = "ssd";

// Tensors that the kernels take: x, dt, a, b, c, d and the state.
using SsdTensors = std::array<Tensor, 7>;

kernels::SsdInputs ssd_views(const SsdTensors& t, const std::vector<int64_t>& borders) {
  const auto& [x, dt, a, b, c, d, state] = t;
  return {.x = view_of(x),
          .dt = gate_view_of(dt),
          .a = span_of(a),
          .d = span_of(d),
          .b = view_of(b),
          .c = view_of(c),
          .state = borders.empty() ? state_view_of(state) : kernels::View<float>(),
          .cu_seqlens = borders};
}

SsdTensors ssd_rows(const SsdTensors& t) {
  const auto& [x, dt, a, b, c, d, state] = t;
  return {
      with_contiguous_rows(x),    dt, a.contiguous(), with_contiguous_rows(b), with_contiguous_rows(c), d.contiguous(),
      with_contiguous_rows(state)};
}

std::tuple<Tensor, Tensor, Tensor> ssd_forward(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b,
                                               const Tensor& c, const Tensor& d, const Tensor& state,
                                               const c10::optional<Tensor>& starts) {
  RECORD_USER_SCOPE("ovq::ssd_forward");
  use_torch_threads();
  const SsdTensors tensors = ssd_rows({x, dt, a, b, c, d, state});
  const std::vector<int64_t> borders = borders_of(kSsd, or_undefined(starts), x.size(1));
  const kernels::SsdInputs in = ssd_views(tensors, borders);
  const int64_t floats = kernels::saved_floats(in);
  const Tensor o = empty_output(x.sizes()), after = state_after(tensors.back(), borders);
  const Tensor saved = saved_memory(floats, borders);
  kernels::ssd_forward(
      in, {.o = view_of(o), .state = optional_state_view_of(after), .saved = span_of(saved).first(floats)});
  return {o, defined_or_absent(after, x), saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ssd_backward(
    const c10::optional<Tensor>& d_o, const c10::optional<Tensor>& d_after, const Tensor& x, const Tensor& dt,
    const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& state, const Tensor& saved,
    const c10::optional<Tensor>& starts, bool wants_d_state) {
  RECORD_USER_SCOPE("ovq::ssd_backward");
  use_torch_threads();
  const SsdTensors tensors = ssd_rows({x, dt, a, b, c, d, state});
  const std::vector<int64_t> borders = borders_of(kSsd, or_undefined(starts), x.size(1));
  const kernels::SsdInputs in = ssd_views(tensors, borders);
  const Tensor d_rows = rows_or_zeros(d_o, x), d_last = rows_or_none(d_after);
  const Tensor d_x = empty_output(x.sizes()), d_b = empty_output(b.sizes()), d_c = empty_output(c.sizes());
  const Tensor d_dt = at::empty(dt.sizes(), dt.options());
  const Tensor d_a = at::empty(a.sizes(), a.options()), d_d = at::empty(a.sizes(), a.options());
  const Tensor d_state = wants_d_state ? at::empty(state.sizes(), state.options()) : Tensor();
  kernels::ssd_backward(in, span_of(saved).first(kernels::saved_floats(in)), view_of(d_rows),
                        optional_state_view_of(d_last),
                        {.d_x = view_of(d_x),
                         .d_dt = gate_view_of(d_dt),
                         .d_b = view_of(d_b),
                         .d_c = view_of(d_c),
                         .d_a = span_of(d_a),
                         .d_d = span_of(d_d),
                         .d_state = optional_state_view_of(d_state)});
  return {d_x, d_dt, d_a, d_b, d_c, d_d, defined_or_absent(d_state, x)};
}

int64_t ssd_saved(int64_t groups, int64_t heads, int64_t key_dim, int64_t value_dim) {
  const kernels::View<const float> keys = no_tokens(groups, key_dim);
  const std::vector<float> rates(heads);
  return kernels::saved_floats(
      {.x = no_tokens(heads, value_dim), .dt = no_tokens(heads, 1), .a = rates, .d = rates, .b = keys, .c = keys});
}

class SsdFunction : public OnceDifferentiable<SsdFunction> {
 public:
  static constexpr const char* kOp = kSsd;

  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& dt, const Tensor& a,
                               const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& state,
                               const c10::optional<Tensor>& starts) {
    static const auto op = dispatched<decltype(ssd_forward)>("ovq::ssd_forward");
    const auto [o, after, saved] = call_dispatched(op, x, dt, a, b, c, d, state, starts);
    context->save_for_backward({x, dt, a, b, c, d, state, saved, or_undefined(starts)});
    context->saved_data["d_state"] = !starts && state.requires_grad();
    context->set_materialize_grads(false);
    return with_state(o, after, starts.has_value());
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(ssd_backward)>("ovq::ssd_backward");
    const variable_list s = context->get_saved_variables();
    const bool wants_d_state = context->saved_data["d_state"].toBool();
    const auto [d_x, d_dt, d_a, d_b, d_c, d_d, d_state] =
        call_dispatched(op, gradient_at(gradients, 0), gradient_at(gradients, 1), s[0], s[1], s[2], s[3], s[4], s[5],
                        s[6], s[7], optional(s[8]), wants_d_state);
    return {d_x, d_dt, d_a, d_b, d_c, d_d, wants_d_state ? d_state : Tensor(), Tensor()};
  }
};

void check_ssd(const SsdInputs& in) {
  check(in.x.dim() == 4, kSsd, "x has ", in.x.dim(), " dimensions; must have 4: [batch, time, heads, dim]");
  check(in.b.dim() == 4 && in.b.sym_sizes().slice(0, 2) == in.x.sym_sizes().slice(0, 2), kSsd, "b has shape ",
        ShapeText{in.b}, "; must be [", SizeText{in.x, 0}, ", ", SizeText{in.x, 1}, ", groups, state]");
  check(in.c.sym_sizes() == in.b.sym_sizes(), kSsd, "c has shape ", ShapeText{in.c}, "; must equal b's ",
        ShapeText{in.b});
  const int64_t groups = fixed_size(in.b, 2), heads = fixed_size(in.x, 2);
  check(groups >= 1 && heads % groups == 0, kSsd, "b has ", groups, " groups; must divide x's ", heads, " heads");
  check_gate(kSsd, "dt", in.dt, in.x);
  check(in.a.dim() == 1 && in.a.sym_size(0) == heads, kSsd, "a has shape ", ShapeText{in.a}, "; must be [", heads, "]");
  check(in.d.sym_sizes() == in.a.sym_sizes(), kSsd, "d has shape ", ShapeText{in.d}, "; must be [", heads, "]");
}

OutputAndState ssd_op(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c,
                      const OptionalTensor& d, const OptionalTensor& initial_state, bool return_state,
                      const OptionalTensor& cu_seqlens) {
  check_arguments(kSsd, {{"x", x},
                         {"dt", dt},
                         {"a", a},
                         {"b", b, kLikeFirst},
                         {"c", c, kLikeFirst},
                         {"d", or_undefined(d), kOptional},
                         {"initial_state", or_undefined(initial_state), kOptional}});
  const Tensor skip = d ? *d : at::zeros_like(a);
  check_ssd({.x = x, .dt = dt, .a = a, .b = b, .c = c, .d = skip});
  const Sequences sequences{
      kSsd, x, initial_state, cu_seqlens, return_state, {fixed_size(x, 2), fixed_size(b, 3), fixed_size(x, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return ssd(
        {.x = cut(x), .dt = cut(dt), .a = a, .b = cut(b), .c = cut(c), .d = skip, .state = state, .starts = starts});
  });
}

}  // namespace

RecurrenceResult ssd(const SsdInputs& in) {
  check_ssd(in);
  check_has_kernels(kSsd, "x", in.x);
  const Tensor state = state_before(kSsd, in.state, in.x, in.b.sym_size(3), in.x.sym_size(3));
  const Tensor x = float_rows(in.x), b = float_rows(in.b), c = float_rows(in.c), dt = in.dt.to(at::kFloat);
  const Tensor a = in.a.to(at::kFloat).contiguous(), d = in.d.to(at::kFloat).contiguous();
  RecurrenceResult result;
  if (is_empty(x) || is_empty(b)) {
    result = without_tokens(x, state);
  } else if (is_recorded({x, dt, a, b, c, d, state, in.starts})) {
    result = result_of(SsdFunction::apply(x, dt, a, b, c, d, state, packed_starts(in.starts)));
  } else {
    const std::vector<int64_t> borders = borders_of(kSsd, in.starts, x.size(1));
    use_torch_threads();
    result = {.o = empty_output(x.sizes()), .state = next_state(x, state, borders)};
    kernels::ssd_forward(ssd_views({x, dt, a, b, c, d, state}, borders),
                         {.o = view_of(result.o), .state = optional_state_view_of(result.state), .saved = {}});
  }
  result.o = result.o.to(in.x.scalar_type());
  return result;
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("ssd(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d=None, " OVQ_SEQUENCES
              ") -> (Tensor, Tensor?)",
              ssd_op);
#define OVQ_INPUTS "Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor d, Tensor state"
  library.def("ssd_forward(" OVQ_INPUTS ", Tensor? starts) -> (Tensor o, Tensor after, Tensor saved)",
              torch::dispatch(c10::DispatchKey::CPU, ssd_forward));
  library.def("ssd_backward(Tensor? d_o, Tensor? d_after, " OVQ_INPUTS
              ", Tensor saved, Tensor? starts, bool wants_d_state) -> (Tensor d_x, Tensor d_dt, Tensor d_a, Tensor "
              "d_b, Tensor d_c, Tensor d_d, Tensor d_state)",
              torch::dispatch(c10::DispatchKey::CPU, ssd_backward));
  library.def("ssd_saved(int groups, int heads, int key_dim, int value_dim) -> int", ssd_saved);
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
