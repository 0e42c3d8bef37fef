// Linear attention, with or without a decay per token:
//   S_t = e^{g_t} S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t
// By the kernels, which say how and at what cost: linear_attention.h.
#pragma once

#include "ovq/ops/recurrence/torch.h"

namespace ovq::ops {

struct LinearAttentionInputs {
  at::Tensor q, k;              // [B, T, H, dk]
  at::Tensor v;                 // [B, T, H, dv]
  at::Tensor g;                 // log of the decays [B, T, H], at most 0; undefined: none
  at::Tensor state;             // before the first token, [B, H, dk, dv]; undefined: zeros
  c10::optional<double> scale;  // none: dk^(-1/2)
  at::Tensor starts;            // first tokens of packed sequences, which start from zeros; undefined: not packed
};

// In float32; o has q's dtype. One token without gradients overwrites `state` by the one returned.
RecurrenceResult linear_attention(const LinearAttentionInputs& inputs);

}  // namespace ovq::ops
