// The gated delta rule (arXiv 2412.06464), with a decay e^g and a writing strength beta per token:
//   S' = e^g S;  u = beta (v - S'^T k);  S = S' + k u^T;  o = dk^(-1/2) S^T q
// In a chunk, with G the sums of g, L_ij = e^{G_i - G_j} for i >= j and S the state before it:
//   A = strictly lower part of diag(beta) (K K^T . L);  [U | W] = (I + A)^(-1) [diag(beta) V | diag(beta e^G) K]
//   V' = U - W S;  O = dk^(-1/2) (diag(e^G) Q S + (Q K^T . L) V');  S <- e^{G_C} S + K^T diag(e^{G_C - G}) V'
// Only V' and S go from chunk to chunk. Cost per token and head: 3 dk dv + C (2.5 dk + 1.5 dv) multiply-adds forward.
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
  int64_t chunk = 64;
};

// By chunks; one token without gradients directly, with `state` overwritten by the one returned.
RecurrenceResult gated_delta_rule(const GatedDeltaRuleInputs& inputs);

// Token by token, as the formula stands.
RecurrenceResult gated_delta_rule_recurrent(const GatedDeltaRuleInputs& inputs);

}  // namespace ovq::ops
