// The recurrence of Mamba-2 (arXiv 2405.21060):
//   h_t = e^{dt A} h_{t-1} + dt x_t B_t^T,   y_t = h_t C_t + D x_t
// which is decayed linear attention with queries C, keys B, values dt x and log decays dt A.
// By the kernels, which say how and at what cost: ssd.h.
#pragma once

#include "ovq/ops/recurrence/torch.h"

namespace ovq::ops {

struct SsdInputs {
  at::Tensor x;       // [B, T, H, P]
  at::Tensor dt;      // steps [B, T, H], positive
  at::Tensor a;       // A [H], negative
  at::Tensor b, c;    // [B, T, G, N]; heads take groups in order, H / G heads each
  at::Tensor d;       // D [H]
  at::Tensor state;   // before the first token, [B, H, N, P]; undefined: zeros
  at::Tensor starts;  // first tokens of packed sequences, which start from zeros; undefined: not packed
};

// o [B, T, H, P] in x's dtype and the state [B, H, N, P] after it, in float32. One token without gradients overwrites
// `state` by the one returned.
RecurrenceResult ssd(const SsdInputs& inputs);

}  // namespace ovq::ops
