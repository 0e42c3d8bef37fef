// Linear attention with or without a decay per token:
//   S_t = e^{g_t} S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t
// Computed by chunks of 32 tokens; the formulas are in kernel-inl.h. Multiply-adds per token and head:
// forward 2 dk dv + 16 (dk + dv), backward 5 dk dv + 32 (1.5 dk + dv). Backward needs the states at the chunk borders,
// dk dv / 32 floats per token and head.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

struct LinearAttentionInputs {
  View<const float> q, k;  // [B, T, G, dk]; H a multiple of G: head h reads query and key h / (H / G)
  View<const float> v;     // [B, T, H, dv]
  View<const float> g;     // [B, T, H, 1]: log decays, at most 0; absent: none
  float scale = 1;
  View<const float> state;  // before the first token of each sequence, [sequences, dk, H, dv]; absent: zeros
  // Packed sequences: B = 1 and sequence s holds the tokens cu_seqlens[s] ... cu_seqlens[s + 1] - 1. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
};

struct LinearAttentionOutputs {
  View<float> o;      // [B, T, H, dv]
  View<float> state;  // after the last tokens, [sequences, dk, H, dv]; may be the inputs' state; absent: not wanted
  std::span<float> saved;  // for backward, as many as saved_floats() says; empty: not wanted
};

struct LinearAttentionGradients {
  View<float> d_q, d_k, d_v;  // shaped as the inputs; overwritten
  View<float> d_g;            // absent: not wanted
  View<float> d_state;        // absent: not wanted
};

int64_t saved_floats(const LinearAttentionInputs& inputs);

// Each throws std::invalid_argument naming the argument that is wrong.
void linear_attention_forward(const LinearAttentionInputs& inputs, const LinearAttentionOutputs& outputs);

// Gradients of sum(o * d_o) + sum(state * d_state); d_state may be absent.
void linear_attention_backward(const LinearAttentionInputs& inputs, std::span<const float> saved, View<const float> d_o,
                               View<const float> d_state, const LinearAttentionGradients& gradients);

}  // namespace ovq::kernels
