#include "ovq/kernels/ssd.h"

#include "ovq/kernels/linear_run.h"

namespace ovq::kernels {
namespace {

constexpr const char* kSsd = "ssd";

// The names of linear attention in errors, q, k and v, stand for c, b and x.
recurrence::LinearPlan plan_ssd(const SsdInputs& in) {
  const auto check_heads = [&](const char* name, std::span<const float> x) {
    check(static_cast<int64_t>(x.size()) == in.x.heads, kSsd, name, " has ", x.size(), " elements; must be ",
          in.x.heads, ", one for each head");
  };
  check_heads("a", in.a);
  check_heads("d", in.d);
  check_shape(kSsd, "b", in.b, in.x.batch, in.x.time, in.c.heads, in.c.dim);
  check(in.c.heads >= 1 && in.x.heads % in.c.heads == 0, kSsd, "c has ", in.c.heads, " groups; must divide x's ",
        in.x.heads, " heads");
  check_shape(kSsd, "dt", in.dt, in.x.batch, in.x.time, in.x.heads, 1);
  return recurrence::plan_linear(kSsd,
                                 {.q = in.c,
                                  .k = in.b,
                                  .v = in.x,
                                  .g = {},
                                  .steps = in.dt,
                                  .rates = in.a.data(),
                                  .skips = in.d.data(),
                                  .state = in.state},
                                 in.cu_seqlens);
}

}  // namespace

int64_t saved_floats(const SsdInputs& in) { return recurrence::saved_floats(plan_ssd(in)); }

void ssd_forward(const SsdInputs& in, const SsdOutputs& out) {
  recurrence::LinearPlan plan = plan_ssd(in);
  plan.call.o = out.o;
  plan.call.last_state = out.state;
  recurrence::run_forward(plan, out.saved);
}

void ssd_backward(const SsdInputs& in, std::span<const float> saved, View<const float> d_o, View<const float> d_state,
                  const SsdGradients& gradients) {
  recurrence::LinearPlan plan = plan_ssd(in);
  const size_t heads = in.a.size();
  check(gradients.d_a.size() == heads, kSsd, "d_a has ", gradients.d_a.size(), " elements; must have ", heads);
  check(gradients.d_d.size() == heads, kSsd, "d_d has ", gradients.d_d.size(), " elements; must have ", heads);
  std::vector<double> d_rates(plan.pieces.size() * heads, 0.0), d_skips(d_rates);
  plan.call.d_o = d_o;
  plan.call.d_last_state = d_state;
  plan.call.d_q = gradients.d_c;
  plan.call.d_k = gradients.d_b;
  plan.call.d_v = gradients.d_x;
  plan.call.d_steps = gradients.d_dt;
  plan.call.d_rates = d_rates.data();
  plan.call.d_skips = d_skips.data();
  plan.call.d_state = gradients.d_state;
  recurrence::run_backward(plan, saved);
  recurrence::add_up(d_rates, gradients.d_a);
  recurrence::add_up(d_skips, gradients.d_d);
}

}  // namespace ovq::kernels
