#include "ovq/kernels/linear_attention.h"

#include "ovq/kernels/linear_run.h"

namespace ovq::kernels {

namespace recurrence {
namespace {

int64_t cost_of(const LinearPlan& plan) {
  const auto& [batch, time, heads, value_heads, key_dim, value_dim] = plan.sizes;
  return value_heads / heads * (2 * key_dim * value_dim + kChunk * (key_dim + value_dim));
}

template <class T>
void check_state(const LinearPlan& plan, const char* name, const View<T>& state) {
  check_shape(plan.op, name, state, static_cast<int64_t>(plan.pieces.size()), plan.sizes.key_dim,
              plan.sizes.value_heads, plan.sizes.value_dim, true);
}

}  // namespace

LinearPlan plan_linear(const char* op, const LinearCall& call, std::span<const int64_t> cu_seqlens) {
  LinearPlan plan{.op = op, .sizes = check_queries_keys_values(op, call.q, call.k, call.v)};
  check_gate(op, "g", call.g, plan.sizes, true);
  check_gate(op, "dt", call.steps, plan.sizes, true);
  plan.pieces = check_pieces(op, plan.sizes, cu_seqlens);
  check_state(plan, "state", call.state);
  plan.call = call;
  return plan;
}

int64_t saved_floats(const LinearPlan& plan) {
  const Sizes& s = plan.sizes;
  return border_count(plan.pieces) * s.value_heads * s.key_dim * padded(s.value_dim);
}

void run_forward(LinearPlan& plan, std::span<float> saved) {
  const Sizes& s = plan.sizes;
  LinearCall& call = plan.call;
  check_shape(plan.op, "o", call.o, s.batch, s.time, s.value_heads, s.value_dim);
  check_state(plan, "state", call.last_state);
  call.borders = check_borders<float>(plan.op, plan.pieces, s.value_heads, s.key_dim, s.value_dim, saved);
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, s.heads, cost_of(plan), kernels.linear_scratch(call, false),
      [&](const Piece& piece, int64_t group, float* scratch) { kernels.linear_forward(call, piece, group, scratch); });
}

void run_backward(LinearPlan& plan, std::span<const float> saved) {
  const Sizes& s = plan.sizes;
  LinearCall& call = plan.call;
  check_shape(plan.op, "d_o", call.d_o, s.batch, s.time, s.value_heads, s.value_dim);
  check_shape(plan.op, "d_q", call.d_q, s.batch, s.time, s.heads, s.key_dim);
  check_shape(plan.op, "d_k", call.d_k, s.batch, s.time, s.heads, s.key_dim);
  check_shape(plan.op, "d_v", call.d_v, s.batch, s.time, s.value_heads, s.value_dim);
  check_shape(plan.op, "d_g", call.d_g, s.batch, s.time, s.value_heads, 1, true);
  check_shape(plan.op, "d_dt", call.d_steps, s.batch, s.time, s.value_heads, 1, true);
  check_state(plan, "d_state", call.d_last_state);
  check_state(plan, "d_state", call.d_state);
  check(!saved.empty() || plan.pieces.empty(), plan.op, "saved is missing");
  call.borders = check_borders<const float>(plan.op, plan.pieces, s.value_heads, s.key_dim, s.value_dim, saved);
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, s.heads, 2 * cost_of(plan), kernels.linear_scratch(call, true),
      [&](const Piece& piece, int64_t group, float* scratch) { kernels.linear_backward(call, piece, group, scratch); });
}

}  // namespace recurrence

namespace {

constexpr const char* kLinearAttention = "linear_attention";

recurrence::LinearPlan plan_linear_attention(const LinearAttentionInputs& in) {
  return recurrence::plan_linear(kLinearAttention,
                                 {.q = in.q, .k = in.k, .v = in.v, .g = in.g, .scale = in.scale, .state = in.state},
                                 in.cu_seqlens);
}

}  // namespace

int64_t saved_floats(const LinearAttentionInputs& in) { return recurrence::saved_floats(plan_linear_attention(in)); }

void linear_attention_forward(const LinearAttentionInputs& in, const LinearAttentionOutputs& out) {
  recurrence::LinearPlan plan = plan_linear_attention(in);
  plan.call.o = out.o;
  plan.call.last_state = out.state;
  recurrence::run_forward(plan, out.saved);
}

void linear_attention_backward(const LinearAttentionInputs& in, std::span<const float> saved, View<const float> d_o,
                               View<const float> d_state, const LinearAttentionGradients& gradients) {
  recurrence::LinearPlan plan = plan_linear_attention(in);
  plan.call.d_o = d_o;
  plan.call.d_last_state = d_state;
  plan.call.d_q = gradients.d_q;
  plan.call.d_k = gradients.d_k;
  plan.call.d_v = gradients.d_v;
  plan.call.d_g = gradients.d_g;
  plan.call.d_state = gradients.d_state;
  recurrence::run_backward(plan, saved);
}

}  // namespace ovq::kernels
