// The gated delta rule (arXiv 2412.06464), with a decay e^g and a writing strength beta per token:
//   S' = e^g S;  u = beta (v - S'^T k);  S = S' + k u^T;  o = scale S^T q
// Computed by chunks of 32 tokens; the formulas are in kernel-inl.h. Multiply-adds per token and head:
// forward 3 dk dv + 32 (dk + dv), backward 6 dk dv + 32 (3 dk + 2 dv). Backward needs the states at the chunk borders
// and the written values V', dk dv / 32 + dv floats per token and head; it recomputes the rest.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

struct GatedDeltaRuleInputs {
  View<const float> q, k;     // [B, T, H, dk], rows of k of norm at most one
  View<const float> v;        // [B, T, H, dv]
  View<const float> g, beta;  // [B, T, H, 1]: log decays, at most 0; strengths in [0, 1]
  float scale = 1;
  View<const float> state;  // before the first token of each sequence, [sequences, dk, H, dv]; absent: zeros
  // Packed sequences: B = 1 and sequence s holds the tokens cu_seqlens[s] ... cu_seqlens[s + 1] - 1. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
};

struct GatedDeltaRuleOutputs {
  View<float> o;      // [B, T, H, dv]
  View<float> state;  // after the last tokens, [sequences, dk, H, dv]; may be the inputs' state; absent: not wanted
  std::span<float> saved;  // for backward, as many as saved_floats() says; empty: not wanted
};

struct GatedDeltaRuleGradients {
  View<float> d_q, d_k, d_v, d_g, d_beta;  // shaped as the inputs; overwritten
  View<float> d_state;                     // absent: not wanted
};

int64_t saved_floats(const GatedDeltaRuleInputs& inputs);

// Each throws std::invalid_argument naming the argument that is wrong.
void gated_delta_rule_forward(const GatedDeltaRuleInputs& inputs, const GatedDeltaRuleOutputs& outputs);

// Gradients of sum(o * d_o) + sum(state * d_state); d_state may be absent.
void gated_delta_rule_backward(const GatedDeltaRuleInputs& inputs, std::span<const float> saved, View<const float> d_o,
                               View<const float> d_state, const GatedDeltaRuleGradients& gradients);

}  // namespace ovq::kernels
