#include "ovq/ops/linear_attention/torch.h"

#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "ovq/ops/linear_attention/linear_attention.h"
#include "ovq/ops/linear_attention/torch_chunked.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLinearAttention = "linear_attention";

class LinearAttentionFunction : public torch::autograd::Function<LinearAttentionFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& state, double scale, int64_t chunk) {
    RECORD_USER_SCOPE("ovq::linear_attention_forward");
    const Tensor gates = to_chunks(g, chunk);
    ChunkedLinear x{.q = to_chunks(q, chunk),
                    .k = to_chunks(k, chunk),
                    .v = to_chunks(v, chunk),
                    .decay = make_decay(gates),
                    .scale = scale};
    add_states(x, state.flatten(0, 1));
    context->save_for_backward({x.q, x.k, x.v, gates, x.states, q, k, v, g, state});
    context->saved_data["scale"] = scale;
    context->saved_data["batch"] = q.size(0);
    context->saved_data["time"] = q.size(1);
    return {from_chunks(chunked_linear_forward(x), q.size(0), q.size(1)),
            x.states.select(1, x.q.size(1)).clone().view_as(state)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::linear_attention_backward");
    const variable_list saved = context->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      const double scale = context->saved_data["scale"].toDouble();
      const auto formula = [&](const variable_list& s) -> variable_list {
        const RecurrenceResult result =
            linear_attention_recurrent({.q = s[0], .k = s[1], .v = s[2], .g = s[3], .state = s[4], .scale = scale});
        return {result.o, result.state};
      };
      return formula_gradients(formula, {saved[5], saved[6], saved[7], saved[8], saved[9], {}, {}}, gradients);
    }
    const ChunkedLinear x{.q = saved[0],
                          .k = saved[1],
                          .v = saved[2],
                          .decay = make_decay(saved[3]),
                          .scale = context->saved_data["scale"].toDouble(),
                          .states = saved[4]};
    const int64_t batch = context->saved_data["batch"].toInt(), time = context->saved_data["time"].toInt();
    const ChunkedLinearGradients d =
        chunked_linear_backward(x, to_chunks(gradients[0], x.q.size(2)), gradients[1].flatten(0, 1));
    const auto back = [&](const Tensor& y) { return from_chunks(y, batch, time); };
    return {back(d.d_q), back(d.d_k), back(d.d_v), back(d.d_g), d.d_start.reshape(gradients[1].sizes()),
            Tensor(),    Tensor()};
  }
};

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

class FusedLinearAttention : public OnceDifferentiable<FusedLinearAttention> {
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

struct Prepared {
  Tensor q, k, v, g, state;
  double scale;
};

RecurrenceResult fused_linear_attention(const Prepared& in, const Tensor& starts) {
  const Tensor q = with_contiguous_rows(in.q), k = with_contiguous_rows(in.k), v = with_contiguous_rows(in.v);
  const Tensor state = with_contiguous_rows(in.state);
  if (is_recorded({q, k, v, in.g, state, starts})) {
    return result_of(FusedLinearAttention::apply(q, k, v, in.g, state, in.scale, packed_starts(starts)));
  }
  const std::vector<int64_t> borders = borders_of(kLinearAttention, starts, q.size(1));
  use_torch_threads();
  const RecurrenceResult result{.o = empty_output(v.sizes()), .state = next_state(q, state, borders)};
  kernels::linear_attention_forward(
      linear_views(q, k, v, in.g, state, in.scale, borders),
      {.o = view_of(result.o), .state = optional_state_view_of(result.state), .saved = {}});
  return result;
}

Prepared prepare(const LinearAttentionInputs& in) {
  check_recurrence(kLinearAttention, in.q, in.k, in.v, in.state, in.chunk);
  if (in.g.defined()) check_gate(kLinearAttention, "g", in.g, in.q);
  const at::ScalarType type = wide_type(in.q);
  return {
      .q = in.q.to(type),
      .k = in.k.to(type),
      .v = in.v.to(type),
      .g = in.g.defined() ? in.g.to(type) : at::zeros_symint(in.q.sym_sizes().slice(0, 3), in.q.options().dtype(type)),
      .state = state_or_zeros(in.state, in.q, in.v, type),
      .scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(fixed_size(in.q, 3))))};
}

LinearAttentionInputs part_of(const LinearAttentionInputs& in, int64_t begin, int64_t end) {
  const auto cut = [&](const Tensor& x) { return x.slice(1, begin, end); };
  return {.q = cut(in.q),
          .k = cut(in.k),
          .v = cut(in.v),
          .g = in.g.defined() ? cut(in.g) : in.g,
          .scale = in.scale,
          .chunk = in.chunk};
}

RecurrenceResult step(const Prepared& in) {
  const auto head_rows = [](const Tensor& x) { return x.squeeze(1).unsqueeze(-2); };  // [B, H, 1, d]
  const Tensor state = writable(in.state);
  state.mul_(in.g.squeeze(1).exp().unsqueeze(-1).unsqueeze(-1))
      .add_(head_rows(in.k).transpose(-1, -2) * head_rows(in.v));
  return {.o = at::matmul(head_rows(in.q), state).mul_(in.scale).squeeze(-2).unsqueeze(1), .state = state};
}

}  // namespace

RecurrenceResult linear_attention(const LinearAttentionInputs& inputs) {
  const Prepared in = prepare(inputs);
  RecurrenceResult result;
  if (is_empty(in.q) || is_empty(in.v)) {
    result = {.o = at::zeros_like(in.v), .state = in.state.clone()};
  } else if (runs_fused(kLinearAttention, in.q) && takes_packed(in.q, inputs.starts)) {
    result = fused_linear_attention(in, inputs.starts);
  } else if (const auto borders = borders_of(kLinearAttention, inputs.starts, fixed_size(in.q, 1)); !borders.empty()) {
    result =
        one_by_one(borders, [&](int64_t begin, int64_t end) { return linear_attention(part_of(inputs, begin, end)); });
  } else if (has_tangents({in.q, in.k, in.v, in.g, in.state}) || is_traced({in.q})) {
    result = linear_attention_recurrent(inputs);
  } else if (decodes(in.q)) {
    result = step(in);
  } else {
    const variable_list outputs = LinearAttentionFunction::apply(in.q, in.k, in.v, in.g, in.state, in.scale,
                                                                 std::min(inputs.chunk, in.q.size(1)));
    result = {.o = outputs[0], .state = outputs[1]};
  }
  result.o = result.o.to(inputs.q.scalar_type());
  return result;
}

RecurrenceResult linear_attention_recurrent(const LinearAttentionInputs& inputs) {
  const Prepared in = prepare(inputs);
  if (const auto borders = borders_of(kLinearAttention, inputs.starts, in.q.size(1)); !borders.empty()) {
    return one_by_one(
        borders, [&](int64_t begin, int64_t end) { return linear_attention_recurrent(part_of(inputs, begin, end)); });
  }
  Tensor state = in.state;
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < in.q.size(1); ++t) {
    const Tensor q = in.q.select(1, t), k = in.k.select(1, t), v = in.v.select(1, t);
    state = in.g.select(1, t).exp().unsqueeze(-1).unsqueeze(-1) * state + k.unsqueeze(-1) * v.unsqueeze(-2);
    outputs.push_back(in.scale * at::matmul(q.unsqueeze(-2), state).squeeze(-2));
  }
  const Tensor o = outputs.empty() ? at::zeros_like(in.v) : at::stack(outputs, 1);
  return {.o = o.to(inputs.q.scalar_type()), .state = outputs.empty() ? state.clone() : state};
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
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
