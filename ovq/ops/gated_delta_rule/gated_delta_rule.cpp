#include "ovq/ops/gated_delta_rule/gated_delta_rule.h"

#include "ovq/ops/recurrence/run.h"

namespace ovq::kernels {

namespace recurrence {
namespace {

constexpr const char* kGatedDeltaRule = "gated_delta_rule";

struct DeltaPlan {
  Sizes sizes;
  std::vector<Piece> pieces;
  DeltaCall call;

  template <class T>
  void check_state(const char* name, const View<T>& state) const {
    check_shape(kGatedDeltaRule, name, state, static_cast<int64_t>(pieces.size()), sizes.key_dim, sizes.heads,
                sizes.value_dim, true);
  }
};

DeltaPlan plan_delta(const GatedDeltaRuleInputs& in) {
  DeltaPlan plan;
  plan.sizes = check_queries_keys_values(kGatedDeltaRule, in.q, in.k, in.v);
  check(in.v.heads == in.q.heads, kGatedDeltaRule, "v has ", in.v.heads, " heads; must equal q's ", in.q.heads);
  check_gate(kGatedDeltaRule, "g", in.g, plan.sizes);
  check_gate(kGatedDeltaRule, "beta", in.beta, plan.sizes);
  plan.pieces = check_pieces(kGatedDeltaRule, plan.sizes, in.cu_seqlens);
  plan.check_state("state", in.state);
  plan.call = {.q = in.q, .k = in.k, .v = in.v, .g = in.g, .beta = in.beta, .scale = in.scale, .state = in.state};
  return plan;
}

Borders borders_of(const Sizes& s) {
  return {.heads = s.heads, .key_dim = s.key_dim, .columns = s.value_dim, .more = kChunk * padded(s.value_dim)};
}

Work work_of(const Sizes& s) {
  return {.heads = s.heads,
          .most = heads_that_fit(s.key_dim * state_stride(s.value_dim)),
          .cost = 3 * s.key_dim * s.value_dim + kChunk * (s.key_dim + s.value_dim)};
}

}  // namespace
}  // namespace recurrence

int64_t saved_floats(const GatedDeltaRuleInputs& in) {
  using namespace recurrence;
  const DeltaPlan plan = plan_delta(in);
  return saved_floats(plan.pieces, borders_of(plan.sizes));
}

void gated_delta_rule_forward(const GatedDeltaRuleInputs& in, const GatedDeltaRuleOutputs& out) {
  using namespace recurrence;
  DeltaPlan plan = plan_delta(in);
  const Sizes& s = plan.sizes;
  check_shape(kGatedDeltaRule, "o", out.o, s.batch, s.time, s.heads, s.value_dim);
  plan.check_state("state", out.state);
  DeltaCall& call = plan.call;
  call.o = out.o;
  call.last_state = out.state;
  call.borders = check_borders<float>(kGatedDeltaRule, plan.pieces, borders_of(s), out.saved);
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, work_of(s), [&](int64_t heads) { return kernels.delta_scratch(call, heads, false); },
      [&](const Piece& piece, const HeadRange& heads, float* scratch) {
        kernels.delta_forward(call, piece, heads, scratch);
      });
}

void gated_delta_rule_backward(const GatedDeltaRuleInputs& in, std::span<const float> saved, View<const float> d_o,
                               View<const float> d_state, const GatedDeltaRuleGradients& gradients) {
  using namespace recurrence;
  DeltaPlan plan = plan_delta(in);
  const Sizes& s = plan.sizes;
  const auto check_like = [&](const char* name, const auto& view, int64_t dim) {
    check_shape(kGatedDeltaRule, name, view, s.batch, s.time, s.heads, dim);
  };
  check_like("d_o", d_o, s.value_dim);
  check_like("d_q", gradients.d_q, s.key_dim);
  check_like("d_k", gradients.d_k, s.key_dim);
  check_like("d_v", gradients.d_v, s.value_dim);
  check_like("d_g", gradients.d_g, 1);
  check_like("d_beta", gradients.d_beta, 1);
  plan.check_state("d_state", d_state);
  plan.check_state("d_state", gradients.d_state);
  check(!saved.empty() || plan.pieces.empty(), kGatedDeltaRule, "saved is missing");
  DeltaCall& call = plan.call;
  call.borders = check_borders<const float>(kGatedDeltaRule, plan.pieces, borders_of(s), saved);
  call.d_o = d_o;
  call.d_last_state = d_state;
  call.d_q = gradients.d_q;
  call.d_k = gradients.d_k;
  call.d_v = gradients.d_v;
  call.d_g = gradients.d_g;
  call.d_beta = gradients.d_beta;
  call.d_state = gradients.d_state;
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, work_of(s), [&](int64_t heads) { return kernels.delta_scratch(call, heads, true); },
      [&](const Piece& piece, const HeadRange& heads, float* scratch) {
        kernels.delta_backward(call, piece, heads, scratch);
      });
}

}  // namespace ovq::kernels
