#include "ovq/ops/gated_delta_rule/torch.h"

#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "ovq/ops/gated_delta_rule/gated_delta_rule.h"
#include "ovq/ops/recurrence/torch_chunks.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGatedDeltaRule = "gated_delta_rule";

// Chunked tensors (see chunks.h) and what forward keeps for backward.
struct DeltaChunks {
  Tensor q, k, v, g, beta;  // [M, N, C, dk] twice, [M, N, C, dv], [M, N, C], [M, N, C, 1]
  Tensor inverse;           // (I + A)^(-1), [M, N, C, C]
  Tensor uw;                // [U | W], [M, N, C, dv + dk]
  Tensor values;            // V', [M, N, C, dv]
  Tensor states;            // [M, N + 1, dk, dv]

  double scale() const { return 1 / std::sqrt(static_cast<double>(q.size(3))); }
  int64_t count() const { return q.size(1); }
  Tensor u() const { return uw.narrow(-1, 0, v.size(3)); }
  Tensor w() const { return uw.narrow(-1, v.size(3), k.size(3)); }
  Tensor before() const { return states.narrow(1, 0, count()); }
  Tensor after() const { return states.narrow(1, 1, count()); }
};

// Columns of the state do not meet: body(m, first, columns) for blocks of them.
template <class Body>
void for_state_columns(const DeltaChunks& x, Body&& body) {
  const int64_t heads = x.states.size(0), columns = x.states.size(3);
  const int threads = x.states.is_cpu() && x.states.numel() > 1 << 15 ? at::get_num_threads() : 1;
  int64_t blocks = 1;
  while (heads * blocks < 2 * threads && columns / blocks > 32) blocks *= 2;
  const int64_t block = (columns + blocks - 1) / blocks;
  kernels::parallel_for(heads * blocks, threads, [&](int64_t index, int) {
    const at::NoGradGuard no_grad;
    const int64_t first = index % blocks * block;
    if (first < columns) body(index / blocks, first, std::min(block, columns - first));
  });
}

Tensor part(const Tensor& x, int64_t m, int64_t n, int64_t first, int64_t columns) {
  return x.select(0, m).select(0, n).narrow(1, first, columns);
}

Tensor matrix(const Tensor& x, int64_t m, int64_t n) { return x.select(0, m).select(0, n); }

// Fills x.values and x.states, whose first one is set.
void scan(DeltaChunks& x, const Tensor& writes, const Tensor& total) {
  const Tensor u = x.u(), w = x.w(), decay = total.flatten(1).to(at::kCPU, at::kDouble);
  for_state_columns(x, [&](int64_t m, int64_t first, int64_t columns) {
    for (int64_t n = 0; n < x.count(); ++n) {
      const Tensor state = part(x.states, m, n, first, columns);
      Tensor values = part(x.values, m, n, first, columns), next = part(x.states, m, n + 1, first, columns);
      at::addmm_out(values, part(u, m, n, first, columns), matrix(w, m, n), state, 1, -1);  // V' <- U - W S
      const double factor = decay.data_ptr<double>()[m * x.count() + n];
      at::addmm_out(next, state, matrix(writes, m, n).t(), values, factor, 1);  // S <- e^{G_C} S + K^T V'
    }
  });
}

// d_values comes in as what V' gets from its own chunk and d_states as what S gets from the reads, but for the last,
// which is the gradient by the final state. Both leave complete.
void scan_backward(const DeltaChunks& x, const Tensor& writes, const Tensor& total, const Tensor& d_values,
                   const Tensor& d_states) {
  const Tensor w = x.w(), decay = total.flatten(1).to(at::kCPU, at::kDouble);
  for_state_columns(x, [&](int64_t m, int64_t first, int64_t columns) {
    for (int64_t n = x.count() - 1; n >= 0; --n) {
      const Tensor after = part(d_states, m, n + 1, first, columns);
      const Tensor values = part(d_values, m, n, first, columns), state = part(d_states, m, n, first, columns);
      values.addmm_(matrix(writes, m, n), after);                      // dV' += K dS
      state.addmm_(matrix(w, m, n).t(), values, 1, -1);                // dS_n -= W^T dV'
      state.add_(after, decay.data_ptr<double>()[m * x.count() + n]);  // dS_n += e^{G_C} dS_n+1
    }
  });
}

// (I + lower)^(-1); of `lower` only what is strictly below the diagonal is read.
Tensor unit_inverse(const Tensor& lower) {
  const int64_t chunk = lower.size(-1);
  const Tensor identity = at::eye(chunk, lower.options());
  if (!lower.is_cpu()) return at::linalg_solve_triangular(lower, identity.expand_as(lower), false, true, true);
  const Tensor flat = lower.flatten(0, 1), inverse = at::empty(flat.sizes(), flat.options());
  parallel_blocks(flat.size(0), 8, chunk * chunk * chunk / 4, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    inverse.slice(0, begin, end)
        .copy_(at::linalg_solve_triangular(flat.slice(0, begin, end), identity.expand({end - begin, chunk, chunk}),
                                           false, true, true));
  });
  return inverse.view_as(lower);
}

Tensor scores(const DeltaChunks& x, const Decay& decay) {
  return product(x.q, x.k.transpose(-1, -2)).mul_(decay.pairs).mul_(x.scale());
}

Tensor forward_chunks(DeltaChunks& x, const Decay& decay, const Tensor& start) {
  const Tensor a = product(x.k, x.k.transpose(-1, -2)).mul_(decay.pairs).mul_(x.beta);
  x.inverse = unit_inverse(a);
  x.uw = product(x.inverse, at::cat({x.v * x.beta, x.k * (x.beta * decay.from_start)}, -1));
  x.values = at::empty_like(x.v);
  x.states = at::empty({x.q.size(0), x.count() + 1, x.q.size(3), x.v.size(3)}, x.q.options());
  x.states.select(1, 0).copy_(start);
  scan(x, x.k * decay.to_end, decay.total);
  const Tensor o = product(x.q * (decay.from_start * x.scale()), x.before());
  add_product(o, scores(x, decay), x.values);
  return o;
}

struct Gradients {
  Tensor d_q, d_k, d_v, d_g, d_beta, d_start;
};

Gradients backward_chunks(const DeltaChunks& x, const Tensor& d_o, const Tensor& d_end) {
  const Decay decay = make_decay(x.g);
  const int64_t chunks = x.count(), last = x.q.size(2) - 1;
  const Tensor reads = x.q * (decay.from_start * x.scale()), writes = x.k * decay.to_end;

  // O = reads S + P V', and the scan
  const Tensor d_values = product(scores(x, decay).transpose(-1, -2), d_o);
  const Tensor d_states = at::empty_like(x.states);
  d_states.narrow(1, 0, chunks).copy_(product(reads.transpose(-1, -2), d_o));
  d_states.select(1, chunks).copy_(d_end);
  scan_backward(x, writes, decay.total, d_values, d_states);
  const Tensor d_after = d_states.narrow(1, 1, chunks);

  const Tensor d_scores = product(d_o, x.values.transpose(-1, -2)).mul_(decay.pairs).mul_(x.scale());
  const Tensor d_q = product(d_o, x.before().transpose(-1, -2)).mul_(decay.from_start * x.scale());
  add_product(d_q, d_scores, x.k);
  const Tensor d_k = product(x.values, d_after.transpose(-1, -2)).mul_(decay.to_end);
  add_product(d_k, d_scores.transpose(-1, -2), x.q);
  const Tensor d_sums = row_dots(x.q, d_q).sub_(row_dots(x.k, d_k));
  d_sums.select(-1, last).add_(row_dots(d_after.flatten(2), x.after().flatten(2)));

  // [U | W] = (I + A)^(-1) [beta V | beta e^G K]
  const Tensor d_w = product(d_values, x.before().transpose(-1, -2)).neg_();
  const Tensor inverse = x.inverse.transpose(-1, -2);
  const Tensor d_bv = product(inverse, d_values), d_bk = product(inverse, d_w);
  const Tensor d_a = product(d_bv, x.u().transpose(-1, -2));
  add_product(d_a, d_bk, x.w().transpose(-1, -2));
  d_a.neg_().mul_(decay.pairs).tril_(-1);  // by beta_i (k_i . k_j)
  d_bk.mul_(decay.from_start);             // by beta K
  const Tensor similar = product(x.k, x.k.transpose(-1, -2)), beta = x.beta.squeeze(-1);
  const Tensor strength = row_dots(x.k, d_bk);  // of what G_i multiplies in W
  const Tensor d_pairs = similar.mul_(d_a);
  const Tensor d_beta = d_pairs.sum(-1).add_(strength);
  d_sums.add_(d_beta * beta).sub_((d_pairs * x.beta).sum(-2));
  d_beta.add_(row_dots(x.v, d_bv));

  d_a.mul_(x.beta);
  d_k.addcmul_(d_bk, x.beta);
  add_product(d_k, d_a, x.k);
  add_product(d_k, d_a.transpose(-1, -2), x.k);
  return {.d_q = d_q,
          .d_k = d_k,
          .d_v = d_bv.mul_(x.beta),
          .d_g = sum_to_end(d_sums),
          .d_beta = d_beta,
          .d_start = d_states.select(1, 0)};
}

class GatedDeltaRuleFunction : public torch::autograd::Function<GatedDeltaRuleFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& beta, const Tensor& state, int64_t chunk) {
    RECORD_USER_SCOPE("ovq::gated_delta_rule_forward");
    DeltaChunks x{.q = to_chunks(q, chunk),
                  .k = to_chunks(k, chunk),
                  .v = to_chunks(v, chunk),
                  .g = to_chunks(g, chunk),
                  .beta = to_chunks(beta, chunk).unsqueeze(-1)};
    const Tensor o = forward_chunks(x, make_decay(x.g), state.flatten(0, 1));
    context->save_for_backward(
        {x.q, x.k, x.v, x.g, x.beta, x.inverse, x.uw, x.values, x.states, q, k, v, g, beta, state});
    context->saved_data["batch"] = q.size(0);
    context->saved_data["time"] = q.size(1);
    return {from_chunks(o, q.size(0), q.size(1)), x.states.select(1, x.count()).clone().view_as(state)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::gated_delta_rule_backward");
    const variable_list s = context->get_saved_variables();
    if (at::GradMode::is_enabled())
      return formula_gradients(by_formula, {s[9], s[10], s[11], s[12], s[13], s[14], {}}, gradients);
    const DeltaChunks x{s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]};
    const int64_t batch = context->saved_data["batch"].toInt(), time = context->saved_data["time"].toInt();
    const Gradients d = backward_chunks(x, to_chunks(gradients[0], x.q.size(2)), gradients[1].flatten(0, 1));
    const auto back = [&](const Tensor& y) { return from_chunks(y, batch, time); };
    return {back(d.d_q), back(d.d_k), back(d.d_v), back(d.d_g), back(d.d_beta), d.d_start.reshape(gradients[1].sizes()),
            Tensor()};
  }

 private:
  static variable_list by_formula(const variable_list& x) {
    const RecurrenceResult result =
        gated_delta_rule_recurrent({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .state = x[5]});
    return {result.o, result.state};
  }
};

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

class FusedGatedDeltaRule : public OnceDifferentiable<FusedGatedDeltaRule> {
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

RecurrenceResult fused_gated_delta_rule(const GatedDeltaRuleInputs& in, const Tensor& starts) {
  const Tensor q = with_contiguous_rows(in.q), k = with_contiguous_rows(in.k), v = with_contiguous_rows(in.v);
  const Tensor state = with_contiguous_rows(in.state);
  if (is_recorded({q, k, v, in.g, in.beta, state, starts})) {
    return result_of(FusedGatedDeltaRule::apply(q, k, v, in.g, in.beta, state, packed_starts(starts)));
  }
  const std::vector<int64_t> borders = borders_of(kGatedDeltaRule, starts, q.size(1));
  use_torch_threads();
  const RecurrenceResult result{.o = empty_output(v.sizes()), .state = next_state(q, state, borders)};
  kernels::gated_delta_rule_forward(
      delta_views(q, k, v, in.g, in.beta, state, borders),
      {.o = view_of(result.o), .state = optional_state_view_of(result.state), .saved = {}});
  return result;
}

GatedDeltaRuleInputs prepare(const GatedDeltaRuleInputs& in) {
  check_recurrence(kGatedDeltaRule, in.q, in.k, in.v, in.state, in.chunk);
  check_gate(kGatedDeltaRule, "g", in.g, in.q);
  check_gate(kGatedDeltaRule, "beta", in.beta, in.q);
  const at::ScalarType type = wide_type(in.q);
  return {.q = in.q.to(type),
          .k = in.k.to(type),
          .v = in.v.to(type),
          .g = in.g.to(type),
          .beta = in.beta.to(type),
          .state = state_or_zeros(in.state, in.q, in.v, type),
          .chunk = in.chunk};
}

GatedDeltaRuleInputs part_of(const GatedDeltaRuleInputs& in, int64_t begin, int64_t end) {
  const auto cut = [&](const Tensor& x) { return x.slice(1, begin, end); };
  return {.q = cut(in.q), .k = cut(in.k), .v = cut(in.v), .g = cut(in.g), .beta = cut(in.beta), .chunk = in.chunk};
}

RecurrenceResult step(const GatedDeltaRuleInputs& in) {
  const auto gate = [](const Tensor& x) { return x.squeeze(1).unsqueeze(-1).unsqueeze(-1); };  // [B, H, 1, 1]
  const auto row = [](const Tensor& x) { return x.squeeze(1).unsqueeze(-2); };                 // [B, H, 1, d]
  const Tensor state = writable(in.state).mul_(gate(in.g).exp());
  const Tensor u = (row(in.v) - at::matmul(row(in.k), state)).mul_(gate(in.beta));
  state.addcmul_(row(in.k).transpose(-1, -2), u);
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(3)));
  return {.o = at::matmul(row(in.q), state).mul_(scale).squeeze(-2).unsqueeze(1), .state = state};
}

}  // namespace

RecurrenceResult gated_delta_rule(const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs in = prepare(inputs);
  RecurrenceResult result;
  if (is_empty(in.q) || is_empty(in.v) || in.q.is_meta()) {
    result = {.o = at::zeros_like(in.v), .state = in.state.clone()};
  } else if (runs_fused(kGatedDeltaRule, in.q) && takes_packed(in.q, inputs.starts)) {
    result = fused_gated_delta_rule(in, inputs.starts);
  } else if (const auto borders = borders_of(kGatedDeltaRule, inputs.starts, fixed_size(in.q, 1)); !borders.empty()) {
    result =
        one_by_one(borders, [&](int64_t begin, int64_t end) { return gated_delta_rule(part_of(inputs, begin, end)); });
  } else if (has_tangents({in.q, in.k, in.v, in.g, in.beta, in.state}) || is_traced({in.q})) {
    result = gated_delta_rule_recurrent(inputs);
  } else if (decodes(in.q)) {
    result = step(in);
  } else {
    const variable_list outputs =
        GatedDeltaRuleFunction::apply(in.q, in.k, in.v, in.g, in.beta, in.state, std::min(in.chunk, in.q.size(1)));
    result = {.o = outputs[0], .state = outputs[1]};
  }
  result.o = result.o.to(inputs.q.scalar_type());
  return result;
}

RecurrenceResult gated_delta_rule_recurrent(const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs in = prepare(inputs);
  if (const auto borders = borders_of(kGatedDeltaRule, inputs.starts, in.q.size(1)); !borders.empty()) {
    return one_by_one(
        borders, [&](int64_t begin, int64_t end) { return gated_delta_rule_recurrent(part_of(inputs, begin, end)); });
  }
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(3)));
  Tensor state = in.state;
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < in.q.size(1); ++t) {
    const auto row = [&](const Tensor& x) { return x.select(1, t).unsqueeze(-2); };
    const auto gate = [&](const Tensor& x) { return x.select(1, t).unsqueeze(-1).unsqueeze(-1); };
    const Tensor decayed = gate(in.g).exp() * state;
    const Tensor u = gate(in.beta) * (row(in.v) - at::matmul(row(in.k), decayed));
    state = decayed + row(in.k).transpose(-1, -2) * u;
    outputs.push_back(scale * at::matmul(row(in.q), state).squeeze(-2));
  }
  const Tensor o = outputs.empty() ? at::zeros_like(in.v) : at::stack(outputs, 1);
  return {.o = o.to(inputs.q.scalar_type()), .state = outputs.empty() ? state.clone() : state};
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
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
