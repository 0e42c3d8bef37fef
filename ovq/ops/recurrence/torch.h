// What the linear recurrences have in common: results, checks, dtypes, states.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/core/view.h"
#include "ovq/ops/torch/backend.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/tensor_view.h"
#include "ovq/ops/torch/torch.h"

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
  check(k.sym_sizes() == q.sym_sizes(), op, "k has shape ", ShapeText{k}, "; must equal q's ", ShapeText{q});
  check(v.dim() == 4 && v.sym_sizes().slice(0, 3) == q.sym_sizes().slice(0, 3), op, "v has shape ", ShapeText{v},
        "; must equal q's ", ShapeText{q}, " but for the last dimension");
  check(chunk >= 1, op, "chunk is ", chunk, "; must be at least 1");
  check(!state.defined() ||
            state.sym_sizes() == c10::SymIntArrayRef({q.sym_size(0), q.sym_size(2), q.sym_size(3), v.sym_size(3)}),
        op, "state has shape ", ShapeText{state}, "; must be [", SizeText{q, 0}, ", ", SizeText{q, 2}, ", ",
        SizeText{q, 3}, ", ", SizeText{v, 3}, "]");
}

inline void check_gate(const char* op, const char* name, const at::Tensor& gate, const at::Tensor& q) {
  check(gate.sym_sizes() == q.sym_sizes().slice(0, 3), op, name, " has shape ", ShapeText{gate}, "; must be [",
        SizeText{q, 0}, ", ", SizeText{q, 1}, ", ", SizeText{q, 2}, "]");
}

inline at::Tensor state_or_zeros(const at::Tensor& state, const at::Tensor& q, const at::Tensor& v,
                                 at::ScalarType type) {
  if (state.defined()) return state.to(type);
  return at::zeros_symint({q.sym_size(0), q.sym_size(2), q.sym_size(3), v.sym_size(3)}, q.options().dtype(type));
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

// For the autograd functions of the kernels: none if there are no sequences to tell apart.
inline c10::optional<at::Tensor> packed_starts(const at::Tensor& starts) {
  return starts.defined() && !is_empty(starts) ? c10::optional<at::Tensor>(starts) : c10::nullopt;
}

// Whether the kernels take these sequences: packed ones are one row.
inline bool takes_packed(const at::Tensor& q, const at::Tensor& starts) {
  return !packed_starts(starts) || q.sym_size(0) == 1;
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

// Memory for what forward saves for backward, `floats` of them. Of packed sequences as many as any sequences of that
// number and length may need, so that the size follows from shapes.
at::Tensor saved_memory(int64_t floats, const std::vector<int64_t>& borders);

// A view of no tokens, for saved_floats(): what is saved at one border of chunks.
inline kernels::View<const float> no_tokens(int64_t heads, int64_t dim) { return {nullptr, 1, 0, heads, dim, 0, 0, 0}; }

// The results that the autograd functions have of the dispatched ops' o and state (empty: of packed sequences), and
// their gradients.
inline torch::autograd::variable_list with_state(const at::Tensor& o, const at::Tensor& state, bool packed) {
  return packed ? torch::autograd::variable_list{o} : torch::autograd::variable_list{o, state};
}
inline RecurrenceResult result_of(const torch::autograd::variable_list& outputs) {
  return {.o = outputs[0], .state = outputs.size() > 1 ? outputs[1] : at::Tensor()};
}
inline c10::optional<at::Tensor> gradient_at(const torch::autograd::variable_list& gradients, size_t i) {
  return gradients.size() > i ? optional(gradients[i]) : c10::nullopt;
}

// In the dispatched ops: gradients as the kernels read them, that by o zeros if there is none.
inline at::Tensor rows_or_zeros(const c10::optional<at::Tensor>& gradient, const at::Tensor& like) {
  return gradient ? with_contiguous_rows(*gradient) : at::zeros(like.sizes(), like.options());
}
inline at::Tensor rows_or_none(const c10::optional<at::Tensor>& gradient) {
  return gradient ? with_contiguous_rows(*gradient) : at::Tensor();
}
inline at::Tensor defined_or_absent(const at::Tensor& x, const at::Tensor& like) {
  return x.defined() ? x : absent(like);
}

}  // namespace ovq::ops
