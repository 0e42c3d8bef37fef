// What the linear recurrences have in common: results, checks, states, packed sequences.
#pragma once

#include <vector>

#include "ovq/base/error.h"
#include "ovq/core/view.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/tensor_view.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// What every linear recurrence returns.
struct RecurrenceResult {
  at::Tensor o;      // [B, T, H, dv]
  at::Tensor state;  // after the last token, [B, H, dk, dv], float; of packed sequences undefined
};

// Each throws std::invalid_argument naming the argument.
void check_recurrence(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
void check_gate(const char* op, const char* name, const at::Tensor& gate, const at::Tensor& q);

// In float32 with contiguous rows, as the kernels read it; x itself if it is so already.
inline at::Tensor float_rows(const at::Tensor& x) { return with_contiguous_rows(x.to(at::kFloat)); }

// The same of a state [B, H, rows, columns] before the first token of q [B, T, H, ...]; zeros if it is undefined.
at::Tensor state_before(const char* op, const at::Tensor& state, const at::Tensor& q, const c10::SymInt& rows,
                        const c10::SymInt& columns);

// A call without tokens: no outputs, and an equal state in a new tensor.
inline RecurrenceResult without_tokens(const at::Tensor& v, const at::Tensor& state) {
  return {.o = at::zeros_like(v), .state = state.clone()};
}

// Where the sequences that begin with the tokens `starts` of `time` meet, 0 and `time` included; empty: not packed.
std::vector<int64_t> borders_of(const char* op, const at::Tensor& starts, int64_t time);

// A gate [B, T, H] for the kernels
inline kernels::View<float> gate_view_of(const at::Tensor& x) {
  return {x.data_ptr<float>(), x.size(0), x.size(1), x.size(2), 1, x.stride(0), x.stride(1), x.stride(2)};
}

// For the autograd functions: none if there are no sequences to tell apart.
inline c10::optional<at::Tensor> packed_starts(const at::Tensor& starts) {
  return starts.defined() && !is_empty(starts) ? c10::optional<at::Tensor>(starts) : c10::nullopt;
}

// Where the kernels put the state after the last token; undefined: not wanted.
inline at::Tensor state_after(const at::Tensor& state, const std::vector<int64_t>& borders) {
  return borders.empty() ? at::empty(state.sizes(), state.options()) : at::Tensor();
}

// The same of a call that autograd does not record. In decode, one token at a time without gradients, the state moves
// on in place; one that belongs to a graph does not.
at::Tensor next_state(const at::Tensor& q, const at::Tensor& state, const std::vector<int64_t>& borders);

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
