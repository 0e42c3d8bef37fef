// Causal attention as a torch op with autograd: fused on the CPU, composed of ATen calls elsewhere.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "ovq/ops/torch/backend.h"

namespace ovq::ops {

// q [B, Tq, Hq, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], beta [Hq] or a scalar -> o [B, Tq, Hq, dv] in q's dtype.
// window 0: none. cu_seqlens: packed sequences. k and v may both be bfloat16 with a float32 q: a cache that is stored
// so, for inference; few queries read it as it is.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                     int64_t window = 0, int64_t query_offset = 0, const c10::optional<at::Tensor>& cu_seqlens = {},
                     Backend backend = Backend::automatic);

}  // namespace ovq::ops
