#include "ovq/ops/ssd.h"

#include <array>
#include <vector>

#include "ovq/kernels/ssd.h"
#include "ovq/ops/inputs.h"
#include "ovq/ops/linear_attention.h"
#include "ovq/ops/once_differentiable.h"
#include "ovq/ops/output_memory.h"
#include "ovq/ops/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kSsd = "ssd";

// [B, T, G, N] -> [B, T, H, N]
Tensor for_heads(const Tensor& x, int64_t heads) {
  const int64_t groups = x.size(2);
  if (groups == heads) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), groups, heads / groups, x.size(3)}).flatten(2, 3);
}

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

class FusedSsd : public OnceDifferentiable<FusedSsd> {
 public:
  static constexpr const char* kOp = kSsd;

  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& dt, const Tensor& a,
                               const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& state,
                               const std::vector<int64_t>& borders) {
    RECORD_USER_SCOPE("ovq::ssd_forward");
    use_torch_threads();
    const kernels::SsdInputs in = ssd_views({x, dt, a, b, c, d, state}, borders);
    const Tensor o = empty_output(x.sizes()), after = state_after(state, borders);
    const Tensor saved = empty_output({kernels::saved_floats(in)});
    kernels::ssd_forward(in, {.o = view_of(o), .state = optional_state_view_of(after), .saved = span_of(saved)});
    context->save_for_backward({x, dt, a, b, c, d, state, saved});
    context->saved_data["borders"] = borders;
    context->saved_data["d_state"] = borders.empty() && state.requires_grad();
    context->set_materialize_grads(false);
    return with_state(o, after);
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::ssd_backward");
    use_torch_threads();
    const variable_list s = context->get_saved_variables();
    const SsdTensors tensors{s[0], s[1], s[2], s[3], s[4], s[5], s[6]};
    const auto& [x, dt, a, b, c, d, state] = tensors;
    const Tensor d_o = gradients[0].defined() ? with_contiguous_rows(gradients[0]) : at::zeros(x.sizes(), x.options());
    const Tensor d_after = state_gradient(gradients);
    const std::vector<int64_t> borders = context->saved_data["borders"].toIntVector();
    const Tensor d_x = empty_output(x.sizes()), d_b = empty_output(b.sizes()), d_c = empty_output(c.sizes());
    const Tensor d_dt = at::empty(dt.sizes(), dt.options());
    const Tensor d_a = at::empty(a.sizes(), a.options()), d_d = at::empty(a.sizes(), a.options());
    const Tensor d_state =
        context->saved_data["d_state"].toBool() ? at::empty(state.sizes(), state.options()) : Tensor();
    kernels::ssd_backward(ssd_views(tensors, borders), span_of(s[7]), view_of(d_o), optional_state_view_of(d_after),
                          {.d_x = view_of(d_x),
                           .d_dt = gate_view_of(d_dt),
                           .d_b = view_of(d_b),
                           .d_c = view_of(d_c),
                           .d_a = span_of(d_a),
                           .d_d = span_of(d_d),
                           .d_state = optional_state_view_of(d_state)});
    return {d_x, d_dt, d_a, d_b, d_c, d_d, d_state, Tensor()};
  }
};

RecurrenceResult fused_ssd(const SsdInputs& in, const std::vector<int64_t>& borders) {
  const auto as_float = [](const Tensor& x) { return with_contiguous_rows(x.to(at::kFloat)); };
  const Tensor x = as_float(in.x), b = as_float(in.b), c = as_float(in.c), dt = in.dt.to(at::kFloat);
  const Tensor a = in.a.to(at::kFloat).contiguous(), d = in.d.to(at::kFloat).contiguous();
  const Tensor state = with_contiguous_rows(
      in.state.defined() ? in.state.to(at::kFloat) : at::zeros({x.size(0), x.size(2), b.size(3), x.size(3)}));
  if (needs_gradient({x, dt, a, b, c, d, state})) {
    return result_of(FusedSsd::apply(x, dt, a, b, c, d, state, borders));
  }
  use_torch_threads();
  const RecurrenceResult result{.o = empty_output(x.sizes()), .state = next_state(x, state, borders)};
  kernels::ssd_forward(ssd_views({x, dt, a, b, c, d, state}, borders),
                       {.o = view_of(result.o), .state = optional_state_view_of(result.state), .saved = {}});
  return result;
}

SsdInputs part_of(const SsdInputs& in, int64_t begin, int64_t end) {
  const auto cut = [&](const Tensor& x) { return x.slice(1, begin, end); };
  return {.x = cut(in.x), .dt = cut(in.dt), .a = in.a, .b = cut(in.b), .c = cut(in.c), .d = in.d, .chunk = in.chunk};
}

}  // namespace

void check_ssd(const SsdInputs& in) {
  check(in.x.dim() == 4, kSsd, "x has ", in.x.dim(), " dimensions; must have 4: [batch, time, heads, dim]");
  check(in.b.dim() == 4 && in.b.sizes().slice(0, 2) == in.x.sizes().slice(0, 2), kSsd, "b has shape ", in.b.sizes(),
        "; must be [", in.x.size(0), ", ", in.x.size(1), ", groups, state]");
  check(in.c.sizes() == in.b.sizes(), kSsd, "c has shape ", in.c.sizes(), "; must equal b's ", in.b.sizes());
  check(in.b.size(2) >= 1 && in.x.size(2) % in.b.size(2) == 0, kSsd, "b has ", in.b.size(2),
        " groups; must divide x's ", in.x.size(2), " heads");
  check_gate(kSsd, "dt", in.dt, in.x);
  check(in.a.dim() == 1 && in.a.size(0) == in.x.size(2), kSsd, "a has shape ", in.a.sizes(), "; must be [",
        in.x.size(2), "]");
  check(in.d.sizes() == in.a.sizes(), kSsd, "d has shape ", in.d.sizes(), "; must be [", in.x.size(2), "]");
  check(in.chunk >= 1, kSsd, "chunk is ", in.chunk, "; must be at least 1");
  const std::vector<int64_t> state{in.x.size(0), in.x.size(2), in.b.size(3), in.x.size(3)};
  check(!in.state.defined() || in.state.sizes() == at::IntArrayRef(state), kSsd, "state has shape ",
        in.state.defined() ? in.state.sizes() : at::IntArrayRef(), "; must be ", at::IntArrayRef(state));
}

RecurrenceResult ssd(const SsdInputs& in) {
  check_ssd(in);
  const at::ScalarType type = wide_type(in.x);
  const int64_t heads = in.x.size(2);
  const Tensor x = in.x.to(type), dt = in.dt.to(type);
  const std::vector<int64_t> borders = borders_of(kSsd, in.starts, x.size(1));
  if (takes_packed(x, borders) && x.numel() > 0 && in.b.numel() > 0 && runs_fused(kSsd, x)) {
    RecurrenceResult result = fused_ssd(in, borders);
    result.o = result.o.to(in.x.scalar_type());
    return result;
  }
  RecurrenceResult result = linear_attention({.q = for_heads(in.c, heads).to(type),
                                              .k = for_heads(in.b, heads).to(type),
                                              .v = x * dt.unsqueeze(-1),
                                              .g = dt * in.a,
                                              .state = in.state,
                                              .scale = 1.0,
                                              .starts = in.starts,
                                              .chunk = in.chunk});
  result.o = (result.o + x * in.d.unsqueeze(-1)).to(in.x.scalar_type());
  return result;
}

RecurrenceResult ssd_recurrent(const SsdInputs& in) {
  check_ssd(in);
  const at::ScalarType type = wide_type(in.x);
  if (const auto borders = borders_of(kSsd, in.starts, in.x.size(1)); !borders.empty()) {
    return one_by_one(borders, [&](int64_t begin, int64_t end) { return ssd_recurrent(part_of(in, begin, end)); });
  }
  const Tensor b = for_heads(in.b, in.x.size(2)).to(type), c = for_heads(in.c, in.x.size(2)).to(type);
  const Tensor decays = (in.dt.to(type) * in.a).exp().unsqueeze(-1).unsqueeze(-1);
  Tensor state = state_or_zeros(in.state, b, in.x, type);
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < in.x.size(1); ++t) {
    const Tensor x = in.x.select(1, t).to(type), dt = in.dt.select(1, t).to(type).unsqueeze(-1).unsqueeze(-1);
    state = decays.select(1, t) * state + dt * b.select(1, t).unsqueeze(-1) * x.unsqueeze(-2);
    outputs.push_back(at::matmul(c.select(1, t).unsqueeze(-2), state).squeeze(-2) + in.d.unsqueeze(-1) * x);
  }
  const Tensor o = outputs.empty() ? at::zeros_like(in.x) : at::stack(outputs, 1);
  return {.o = o.to(in.x.scalar_type()), .state = outputs.empty() ? state.clone() : state};
}

}  // namespace ovq::ops
