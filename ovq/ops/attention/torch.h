// Causal attention as a torch op with autograd, by the kernels of attention.h.
#pragma once

#include <ATen/ATen.h>

namespace ovq::ops {

// q [B, Tq, Hq, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], beta [Hq] or a scalar -> o [B, Tq, Hq, dv] in q's dtype.
// window 0: none. cu_seqlens: packed sequences. k and v may both be bfloat16 with a float32 q: a cache that is stored
// so, for inference; few queries read it as it is.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                     int64_t window = 0, int64_t query_offset = 0, const c10::optional<at::Tensor>& cu_seqlens = {});

}  // namespace ovq::ops
