// What the linear recurrences have in common: results, checks, dtypes, states.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/kernels/view.h"
#include "ovq/ops/backend.h"
#include "ovq/ops/tensor_view.h"
#include "ovq/ops/torch.h"

namespace ovq::ops {

// What every linear recurrence returns.
struct RecurrenceResult {
  at::Tensor o;      // [B, T, H, dv]
  at::Tensor state;  // after the last token, [B, H, dk, dv], float or double; of packed sequences undefined
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

// Where the sequences that begin with the tokens `starts` of `time` meet, 0 and `time` included; empty: not packed.
inline std::vector<int64_t> borders_of(const char* op, const at::Tensor& starts, int64_t time) {
  if (!starts.defined() || starts.numel() == 0) return {};
  const at::Tensor flat = starts.to(at::kCPU, at::kLong).contiguous();
  std::vector<int64_t> borders(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  borders.push_back(time);
  check(borders.front() == 0 && std::is_sorted(borders.begin(), borders.end()), op, "starts is [", borders.front(),
        ", ...]; must begin with 0 and ascend to at most ", time);
  return borders;
}

// Packed sequences that the kernels do not take, one after another: run(begin, end) for each. No sequence sees another,
// not even its NaNs.
template <class Run>
RecurrenceResult one_by_one(const std::vector<int64_t>& borders, Run&& run) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < borders.size(); ++i) outputs.push_back(run(borders[i], borders[i + 1]).o);
  return {.o = at::cat(outputs, 1), .state = {}};
}

// Whether the kernels compute a call whose tensors, prepared, are of this kind.
inline bool runs_fused(const char* op, const at::Tensor& x) {
  const bool kernels = x.is_cpu() && x.scalar_type() == at::kFloat;
  const Backend backend = resolved(Backend::automatic);
  check(kernels || backend != Backend::fused, op, "backend is 'fused'; the input is ", c10::toString(x.scalar_type()),
        " on ", x.device().str(), ", and there are kernels for float32, bfloat16 and half on the CPU only");
  return kernels && backend != Backend::composed;
}

// A gate [B, T, H] for the kernels
inline kernels::View<float> gate_view_of(const at::Tensor& x) {
  return {x.data_ptr<float>(), x.size(0), x.size(1), x.size(2), 1, x.stride(0), x.stride(1), x.stride(2)};
}

// One token and nothing to differentiate: the formula itself is the fastest way.
inline bool decodes(const at::Tensor& q) { return q.size(1) == 1 && !at::GradMode::is_enabled(); }

// In decode states move on in place; those that belong to a graph do not.
inline at::Tensor writable(const at::Tensor& state) { return state.requires_grad() ? state.detach().clone() : state; }

// Whether the kernels take these sequences: packed ones are one row.
inline bool takes_packed(const at::Tensor& q, const std::vector<int64_t>& borders) {
  return borders.empty() || q.size(0) == 1;
}

// Where the kernels put the state after the last token; undefined: not wanted.
inline at::Tensor state_after(const at::Tensor& state, const std::vector<int64_t>& borders) {
  return borders.empty() ? at::empty(state.sizes(), state.options()) : at::Tensor();
}

// The same without gradients: in decode over the state before it.
inline at::Tensor next_state(const at::Tensor& q, const at::Tensor& state, const std::vector<int64_t>& borders) {
  const bool over = borders.empty() && decodes(q) && !state.requires_grad() && state.is_contiguous();
  return over ? state : state_after(state, borders);
}

// What the autograd functions of the kernels return, and their gradients: o, and the state if there is one.
inline torch::autograd::variable_list with_state(const at::Tensor& o, const at::Tensor& state) {
  return state.defined() ? torch::autograd::variable_list{o, state} : torch::autograd::variable_list{o};
}
inline RecurrenceResult result_of(const torch::autograd::variable_list& outputs) {
  return {.o = outputs[0], .state = outputs.size() > 1 ? outputs[1] : at::Tensor()};
}
inline at::Tensor state_gradient(const torch::autograd::variable_list& gradients) {
  const bool defined = gradients.size() > 1 && gradients[1].defined();
  return defined ? with_contiguous_rows(gradients[1]) : at::Tensor();
}

}  // namespace ovq::ops
