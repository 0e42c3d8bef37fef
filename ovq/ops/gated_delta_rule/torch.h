// The gated delta rule (arXiv 2412.06464), with a decay e^g and a writing strength beta per token:
//   S' = e^g S;  u = beta (v - S'^T k);  S = S' + k u^T;  o = dk^(-1/2) S^T q
// By the kernels, which say how and at what cost: gated_delta_rule.h.
#pragma once

#include "ovq/ops/recurrence/torch.h"

namespace ovq::ops {

struct GatedDeltaRuleInputs {
  at::Tensor q, k;    // [B, T, H, dk], rows of norm one
  at::Tensor v;       // [B, T, H, dv]
  at::Tensor g;       // log of the decays [B, T, H], at most 0
  at::Tensor beta;    // [B, T, H], in [0, 1]
  at::Tensor state;   // before the first token, [B, H, dk, dv]; undefined: zeros
  at::Tensor starts;  // first tokens of packed sequences, which start from zeros; undefined: not packed
};

// In float32; o has q's dtype. One token without gradients overwrites `state` by the one returned.
RecurrenceResult gated_delta_rule(const GatedDeltaRuleInputs& inputs);

}  // namespace ovq::ops
