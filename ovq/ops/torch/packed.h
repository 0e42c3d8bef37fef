// Sequences packed along time.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "ovq/core/checks.h"
#include "ovq/ops/torch/dispatched.h"

namespace ovq::ops {

// cu_seqlens as numbers; empty: not packed
inline std::vector<int64_t> offsets_of(const char* op, const c10::optional<at::Tensor>& cu_seqlens) {
  if (!cu_seqlens || !cu_seqlens->defined()) return {};
  TORCH_CHECK_TYPE(at::isIntegralType(cu_seqlens->scalar_type(), false), "[", op, "] cu_seqlens has dtype ",
                   cu_seqlens->scalar_type(), "; must be an integer one");
  check(cu_seqlens->dim() == 1 && cu_seqlens->numel() >= 1, op, "cu_seqlens has ", cu_seqlens->dim(),
        " dimensions; must have 1, with at least one element");
  if (is_traced({*cu_seqlens})) {
    cu_seqlens->select(0, 0).item();  // torch.compile breaks its graph here
    fail(op, "cu_seqlens has no values while this call is traced; must be left out, or the call left to eager mode");
  }
  const at::Tensor flat = cu_seqlens->to(at::kCPU, at::kLong).contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

// The first token of each sequence that has any, on the CPU; undefined: not packed
inline at::Tensor starts_of(const char* op, const at::Tensor& x, const c10::optional<at::Tensor>& cu_seqlens) {
  const std::vector<int64_t> offsets = offsets_of(op, cu_seqlens);
  if (offsets.empty()) return {};
  std::vector<int64_t> starts;
  for (const auto& sequence : kernels::check_sequences(op, x.size(0), x.size(1), offsets)) {
    if (sequence.length > 0) starts.push_back(sequence.first);
  }
  return at::tensor(starts, at::kLong);
}

}  // namespace ovq::ops
