// Rotary position embedding: pairs (i, i + D/2) of a row at position p turn by the angle p base^(-2 i / D). float32,
// bfloat16 and half on the CPU, computed in float32.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

struct RotaryOptions {
  double base = 10000.0;
  int64_t first_position = 0;                 // of x's first time step
  c10::optional<at::Tensor> cu_seqlens = {};  // packed sequences: positions restart at each of them
};

// x [B, T, H, D], D even -> [B, T, H, D]
at::Tensor rotary(const at::Tensor& x, const RotaryOptions& options);

// The same in two parts, for queries and keys at the same positions: cosines and sines [T, D] in float32, made of x's
// sizes alone, and x turned by them.
at::Tensor rotary_table(const at::Tensor& x, const RotaryOptions& options);
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table);

}  // namespace ovq::ops
