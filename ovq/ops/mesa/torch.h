// The recurrence of MesaNet (arXiv 2506.05233): attention with the optimal linear map of all keys to their values,
//   H_t = e^g H_{t-1} + beta k k^T;  G_t = e^g G_{t-1} + beta k v^T;  q* = (H_t + diag(lambda))^(-1) q;  o = G_t^T q*
// By the kernels, which say how and at what cost: mesa.h.
#pragma once

#include "ovq/ops/recurrence/torch.h"

namespace ovq::ops {

struct MesaInputs {
  at::Tensor q, k;    // [B, T, H, dk], rows of norm one
  at::Tensor v;       // [B, T, H, dv]
  at::Tensor g;       // log of the decays [B, T, H], at most 0
  at::Tensor beta;    // [B, T, H], in [0, 1]
  at::Tensor lambda;  // [H, dk], positive
  at::Tensor state;   // [H | G] before the first token, [B, H, dk, dk + dv]; undefined: zeros
  int64_t iterations = 30;
  at::Tensor starts;  // first tokens of packed sequences, which start from zeros; undefined: not packed
};

// In float32; o has q's dtype. One token without gradients overwrites `state` by the one returned. The state is [H |
// G]; H is symmetric, but where it is not, H^T stands in place of H.
RecurrenceResult mesa(const MesaInputs& inputs);

}  // namespace ovq::ops
