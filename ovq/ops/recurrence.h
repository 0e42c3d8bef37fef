// What the linear recurrences have in common: results, checks, dtypes, states.
#pragma once

#include "ovq/base/error.h"
#include "ovq/ops/torch.h"

namespace ovq::ops {

// What every linear recurrence returns.
struct RecurrenceResult {
  at::Tensor o;      // [B, T, H, dv]
  at::Tensor state;  // after the last token, [B, H, dk, dv], float or double
};

// Decays and states are computed in float at least.
inline at::ScalarType wide_type(const at::Tensor& x) { return at::promote_types(x.scalar_type(), at::kFloat); }

inline void check_recurrence(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& state, int64_t chunk) {
  check(q.dim() == 4, op, "q has ", q.dim(), " dimensions; must have 4: [batch, time, heads, dim]");
  check(k.sizes() == q.sizes(), op, "k has shape ", k.sizes(), "; must equal q's ", q.sizes());
  check(v.dim() == 4 && v.sizes().slice(0, 3) == q.sizes().slice(0, 3), op, "v has shape ", v.sizes(),
        "; must equal q's ", q.sizes(), " but for the last dimension");
  check(chunk >= 1, op, "chunk is ", chunk, "; must be at least 1");
  check(!state.defined() || state.sizes() == at::IntArrayRef({q.size(0), q.size(2), q.size(3), v.size(3)}), op,
        "state has shape ", state.defined() ? state.sizes() : at::IntArrayRef(), "; must be [", q.size(0), ", ",
        q.size(2), ", ", q.size(3), ", ", v.size(3), "]");
}

inline void check_gate(const char* op, const char* name, const at::Tensor& gate, const at::Tensor& q) {
  check(gate.sizes() == q.sizes().slice(0, 3), op, name, " has shape ", gate.sizes(), "; must be [", q.size(0), ", ",
        q.size(1), ", ", q.size(2), "]");
}

inline at::Tensor state_or_zeros(const at::Tensor& state, const at::Tensor& q, const at::Tensor& v,
                                 at::ScalarType type) {
  if (state.defined()) return state.to(type);
  return at::zeros({q.size(0), q.size(2), q.size(3), v.size(3)}, q.options().dtype(type));
}

// g [B, T, H] with the state forgotten before each of the tokens `starts`: e^-1000 is zero, in double too.
inline at::Tensor restarted(const at::Tensor& g, const at::Tensor& starts) {
  return starts.defined() ? g.index_fill(1, starts.to(at::kLong), -1000.0) : g;
}

// One token and nothing to differentiate: the formula itself is the fastest way.
inline bool decodes(const at::Tensor& q) { return q.size(1) == 1 && !at::GradMode::is_enabled(); }

// In decode states move on in place; those that belong to a graph do not.
inline at::Tensor writable(const at::Tensor& state) { return state.requires_grad() ? state.detach().clone() : state; }

}  // namespace ovq::ops
