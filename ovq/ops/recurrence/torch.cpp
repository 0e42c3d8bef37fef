#include "ovq/ops/recurrence/torch.h"

#include <torch/library.h>

#include <algorithm>

#include "ovq/ops/recurrence/kernel.h"
#include "ovq/ops/recurrence/torch_sequences.h"
#include "ovq/ops/torch/output_memory.h"

namespace ovq::ops {

using at::Tensor;

namespace {

// The first token of each sequence, the empty ones too, for a traced call.
Tensor sequence_starts(const Tensor& cu_seqlens, const Tensor& like, std::string op) {
  const std::vector<int64_t> offsets = offsets_of(op.c_str(), cu_seqlens);
  kernels::check_sequences(op.c_str(), like.size(0), like.size(1), offsets);
  return at::tensor(at::IntArrayRef(offsets).slice(0, offsets.size() - 1), at::kLong);
}

}  // namespace

void check_recurrence(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q.dim() == 4, op, "q has ", q.dim(), " dimensions; must have 4: [batch, time, heads, dim]");
  check(k.sym_sizes() == q.sym_sizes(), op, "k has shape ", ShapeText{k}, "; must equal q's ", ShapeText{q});
  check(v.dim() == 4 && v.sym_sizes().slice(0, 3) == q.sym_sizes().slice(0, 3), op, "v has shape ", ShapeText{v},
        "; must equal q's ", ShapeText{q}, " but for the last dimension");
}

void check_gate(const char* op, const char* name, const Tensor& gate, const Tensor& q) {
  check(gate.sym_sizes() == q.sym_sizes().slice(0, 3), op, name, " has shape ", ShapeText{gate}, "; must be [",
        SizeText{q, 0}, ", ", SizeText{q, 1}, ", ", SizeText{q, 2}, "]");
}

Tensor state_before(const char* op, const Tensor& state, const Tensor& q, const c10::SymInt& rows,
                    const c10::SymInt& columns) {
  const c10::SymInt shape[] = {q.sym_size(0), q.sym_size(2), rows, columns};
  if (!state.defined()) return at::zeros_symint(shape, q.options().dtype(at::kFloat));
  check(state.sym_sizes() == c10::SymIntArrayRef(shape), op, "state has shape ", ShapeText{state}, "; must be ",
        c10::SymIntArrayRef(shape));
  return float_rows(state);
}

std::vector<int64_t> borders_of(const char* op, const Tensor& starts, int64_t time) {
  if (!starts.defined() || starts.numel() == 0) return {};
  const Tensor flat = starts.to(at::kCPU, at::kLong).contiguous();
  std::vector<int64_t> borders(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  borders.push_back(time);
  check(borders.front() == 0 && std::is_sorted(borders.begin(), borders.end()), op, "starts is [", borders.front(),
        ", ...]; must begin with 0 and ascend to at most ", time);
  return borders;
}

Tensor next_state(const Tensor& q, const Tensor& state, const std::vector<int64_t>& borders) {
  const bool decodes = borders.empty() && q.size(1) == 1 && !at::GradMode::is_enabled();
  return decodes && !state.requires_grad() && state.is_contiguous() ? state : state_after(state, borders);
}

Tensor saved_memory(int64_t floats, const std::vector<int64_t>& borders) {
  using kernels::recurrence::kChunk;
  if (borders.empty()) return empty_output({floats});
  int64_t used = 0;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    used += kernels::recurrence::chunks_of(borders[i + 1] - borders[i]) + 1;
  }
  const int64_t most = borders.back() / kChunk + 2 * (static_cast<int64_t>(borders.size()) - 1);
  return empty_output({floats / used * most});
}

Tensor traced_starts(const char* op, const Tensor& cu_seqlens, const Tensor& like) {
  static const auto starts_op = dispatched<decltype(sequence_starts)>("ovq::sequence_starts");
  return starts_op.call(cu_seqlens, like.detach(), op);
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("recurrence_chunk() -> int", [] { return kernels::recurrence::kChunk; });
  library.def("sequence_starts(Tensor cu_seqlens, Tensor like, str op) -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, sequence_starts));
}

}  // namespace ovq::ops
