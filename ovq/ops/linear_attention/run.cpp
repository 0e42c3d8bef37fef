#include "ovq/ops/linear_attention/run.h"

namespace ovq::kernels::recurrence {
namespace {

struct LinearPlan {
  const char* op;
  Sizes sizes;
  std::vector<Piece> pieces;
  LinearCall call;

  template <class T>
  void check_state(const char* name, const View<T>& state) const {
    check_shape(op, name, state, static_cast<int64_t>(pieces.size()), sizes.key_dim, sizes.value_heads, sizes.value_dim,
                true);
  }
  Borders borders() const { return {.heads = sizes.value_heads, .key_dim = sizes.key_dim, .columns = sizes.value_dim}; }
  Work work(int64_t group) const {
    return {.heads = sizes.value_heads,
            .group = group,
            .most = heads_that_fit(sizes.key_dim * state_stride(sizes.value_dim)),
            .cost = 2 * sizes.key_dim * sizes.value_dim + kChunk * (sizes.key_dim + sizes.value_dim)};
  }
};

LinearPlan plan_linear(const LinearInputs& in) {
  LinearPlan plan{.op = in.op, .sizes = check_queries_keys_values(in.op, in.q, in.k, in.v), .pieces = {}, .call = {}};
  check_gate(in.op, "g", in.g, plan.sizes, true);
  check_gate(in.op, "dt", in.steps, plan.sizes, true);
  plan.pieces = check_pieces(in.op, plan.sizes, in.cu_seqlens);
  plan.check_state("state", in.state);
  LinearCall& call = plan.call;
  call.q = in.q;
  call.k = in.k;
  call.v = in.v;
  call.g = in.g;
  call.steps = in.steps;
  call.rates = in.rates;
  call.skips = in.skips;
  call.scale = in.scale;
  call.state = in.state;
  return plan;
}

}  // namespace

int64_t saved_floats(const LinearInputs& in) {
  const LinearPlan plan = plan_linear(in);
  return saved_floats(plan.pieces, plan.borders());
}

void linear_forward(const LinearInputs& in, const View<float>& o, const View<float>& state, std::span<float> saved) {
  LinearPlan plan = plan_linear(in);
  const Sizes& s = plan.sizes;
  check_shape(in.op, "o", o, s.batch, s.time, s.value_heads, s.value_dim);
  plan.check_state("state", state);
  LinearCall& call = plan.call;
  call.o = o;
  call.last_state = state;
  call.borders = check_borders<float>(in.op, plan.pieces, plan.borders(), saved);
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, plan.work(1), [&](int64_t heads) { return kernels.linear_scratch(call, heads, false); },
      [&](const Piece& piece, const HeadRange& heads, float* scratch) {
        kernels.linear_forward(call, piece, heads, scratch);
      });
}

void linear_backward(const LinearInputs& in, std::span<const float> saved, const View<const float>& d_o,
                     const View<const float>& d_state, LinearGradients& gradients) {
  LinearPlan plan = plan_linear(in);
  const Sizes& s = plan.sizes;
  check_shape(in.op, "d_o", d_o, s.batch, s.time, s.value_heads, s.value_dim);
  check_shape(in.op, "d_q", gradients.d_q, s.batch, s.time, s.heads, s.key_dim);
  check_shape(in.op, "d_k", gradients.d_k, s.batch, s.time, s.heads, s.key_dim);
  check_shape(in.op, "d_v", gradients.d_v, s.batch, s.time, s.value_heads, s.value_dim);
  check_shape(in.op, "d_g", gradients.d_g, s.batch, s.time, s.value_heads, 1, true);
  check_shape(in.op, "d_dt", gradients.d_steps, s.batch, s.time, s.value_heads, 1, true);
  plan.check_state("d_state", d_state);
  plan.check_state("d_state", gradients.d_state);
  check(!saved.empty() || plan.pieces.empty(), in.op, "saved is missing");
  const size_t sums = plan.pieces.size() * s.value_heads;
  gradients.d_rates.assign(in.rates == nullptr ? 0 : sums, 0.0);
  gradients.d_skips.assign(in.skips == nullptr ? 0 : sums, 0.0);
  LinearCall& call = plan.call;
  call.borders = check_borders<const float>(in.op, plan.pieces, plan.borders(), saved);
  call.d_o = d_o;
  call.d_last_state = d_state;
  call.d_q = gradients.d_q;
  call.d_k = gradients.d_k;
  call.d_v = gradients.d_v;
  call.d_g = gradients.d_g;
  call.d_steps = gradients.d_steps;
  call.d_state = gradients.d_state;
  call.d_rates = gradients.d_rates.empty() ? nullptr : gradients.d_rates.data();
  call.d_skips = gradients.d_skips.empty() ? nullptr : gradients.d_skips.data();
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, plan.work(s.value_heads / s.heads),  // gradients of keys are sums over the heads of a group
      [&](int64_t heads) { return kernels.linear_scratch(call, heads, true); },
      [&](const Piece& piece, const HeadRange& heads, float* scratch) {
        kernels.linear_backward(call, piece, heads, scratch);
      });
}

}  // namespace ovq::kernels::recurrence
