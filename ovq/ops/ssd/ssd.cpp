#include "ovq/ops/ssd/ssd.h"

#include "ovq/ops/linear_attention/run.h"

namespace ovq::kernels {
namespace {

constexpr const char* kSsd = "ssd";

// Checks by these inputs' own names, since linear attention uses others.
recurrence::LinearInputs ssd_inputs(const SsdInputs& in) {
  const auto check_heads = [&](const char* name, std::span<const float> x) {
    check(static_cast<int64_t>(x.size()) == in.x.heads, kSsd, name, " has ", x.size(), " elements; must have ",
          in.x.heads, ", one for each head");
  };
  check_heads("a", in.a);
  check_heads("d", in.d);
  check_shape(kSsd, "c", in.c, in.x.batch, in.x.time, in.c.heads, in.c.dim);
  check_shape(kSsd, "b", in.b, in.x.batch, in.x.time, in.c.heads, in.c.dim);
  check(in.c.heads >= 1 && in.x.heads % in.c.heads == 0, kSsd, "c has ", in.c.heads, " groups; must divide x's ",
        in.x.heads, " heads");
  check_shape(kSsd, "dt", in.dt, in.x.batch, in.x.time, in.x.heads, 1);
  recurrence::LinearInputs inputs;
  inputs.op = kSsd;
  inputs.q = in.c;
  inputs.k = in.b;
  inputs.v = in.x;
  inputs.steps = in.dt;
  inputs.rates = in.a.data();
  inputs.skips = in.d.data();
  inputs.state = in.state;
  inputs.cu_seqlens = in.cu_seqlens;
  return inputs;
}

}  // namespace

int64_t saved_floats(const SsdInputs& in) { return recurrence::saved_floats(ssd_inputs(in)); }

void ssd_forward(const SsdInputs& in, const SsdOutputs& out) {
  recurrence::linear_forward(ssd_inputs(in), out.o, out.state, out.saved);
}

void ssd_backward(const SsdInputs& in, std::span<const float> saved, View<const float> d_o, View<const float> d_state,
                  const SsdGradients& gradients) {
  const size_t heads = in.a.size();
  check(gradients.d_a.size() == heads, kSsd, "d_a has ", gradients.d_a.size(), " elements; must have ", heads);
  check(gradients.d_d.size() == heads, kSsd, "d_d has ", gradients.d_d.size(), " elements; must have ", heads);
  recurrence::LinearGradients all;
  all.d_q = gradients.d_c;
  all.d_k = gradients.d_b;
  all.d_v = gradients.d_x;
  all.d_steps = gradients.d_dt;
  all.d_state = gradients.d_state;
  recurrence::linear_backward(ssd_inputs(in), saved, d_o, d_state, all);
  recurrence::add_up(all.d_rates, gradients.d_a);
  recurrence::add_up(all.d_skips, gradients.d_d);
}

}  // namespace ovq::kernels
