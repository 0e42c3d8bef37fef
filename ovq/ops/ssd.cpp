#include "ovq/ops/ssd.h"

#include <vector>

#include "ovq/ops/linear_attention.h"

namespace ovq::ops {
namespace {

using at::Tensor;

constexpr const char* kSsd = "ssd";

// [B, T, G, N] -> [B, T, H, N]
Tensor for_heads(const Tensor& x, int64_t heads) {
  const int64_t groups = x.size(2);
  if (groups == heads) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), groups, heads / groups, x.size(3)}).flatten(2, 3);
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
  const Tensor b = for_heads(in.b, in.x.size(2)).to(type), c = for_heads(in.c, in.x.size(2)).to(type);
  const Tensor decays = restarted(in.dt.to(type) * in.a, in.starts).exp().unsqueeze(-1).unsqueeze(-1);
  Tensor state = state_or_zeros(in.state, b, in.x, type);
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < in.x.size(1); ++t) {
    const Tensor x = in.x.select(1, t).to(type), dt = in.dt.select(1, t).to(type).unsqueeze(-1).unsqueeze(-1);
    state = decays.select(1, t) * state + dt * b.select(1, t).unsqueeze(-1) * x.unsqueeze(-2);
    outputs.push_back(at::matmul(c.select(1, t).unsqueeze(-2), state).squeeze(-2) + in.d.unsqueeze(-1) * x);
  }
  const Tensor o = outputs.empty() ? at::zeros_like(in.x) : at::stack(outputs, 1);
  return {.o = o.to(in.x.scalar_type()), .state = state};
}

}  // namespace ovq::ops
