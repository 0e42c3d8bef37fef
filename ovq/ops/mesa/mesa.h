// The recurrence of MesaNet (arXiv 2506.05233): attention with the optimal linear map of all keys to their values,
//   H_t = e^g H_{t-1} + beta k k^T;  G_t = e^g G_{t-1} + beta k v^T;  q* = (H_t + diag(lambda))^(-1) q;  o = G_t^T q*
// q* comes from conjugate gradients, with at most `iterations` iterations, until the residual is at rounding level.
// Computed by chunks of 32 tokens, for which H is needed only before the first; the formulas are in kernel-inl.h.
// Backward solves once more, A y = G do. Then dq = y, dlambda = -sum y . q*, and the rest are the gradients of decayed
// linear attention with queries q*, keys beta k, values [k | v] and output gradients [-y | do].
// Multiply-adds per token and head: iterations * (dk^2 + 32 dk), forward and backward each, and a linear attention.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

struct MesaInputs {
  View<const float> q, k;         // [B, T, H, dk]
  View<const float> v;            // [B, T, H, dv]
  View<const float> g, beta;      // [B, T, H, 1]: log decays, at most 0; strengths, at least 0
  std::span<const float> lambda;  // [H, dk], positive
  int64_t iterations = 30;
  // [H | G] before the first token of each sequence, [sequences, dk, H, dk + dv]; absent: zeros. H should be symmetric;
  // if it is not, H^T is used instead.
  View<const float> state;
  // Packed sequences: B = 1 and sequence s holds the tokens cu_seqlens[s] ... cu_seqlens[s + 1] - 1. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
};

struct MesaOutputs {
  View<float> o;           // [B, T, H, dv]
  View<float> solution;    // q* [B, T, H, dk], needed by backward; absent: not wanted
  View<float> state;       // after the last tokens, as in the inputs; may be the inputs' state; absent: not wanted
  std::span<float> saved;  // for backward, as many as saved_floats() says; empty: not wanted
};

struct MesaSaved {
  View<const float> solution;
  std::span<const float> states;
};

struct MesaGradients {
  View<float> d_q, d_k, d_v, d_g, d_beta;  // shaped as the inputs; overwritten
  std::span<float> d_lambda;               // [H, dk]; overwritten
  View<float> d_state;                     // absent: not wanted
};

int64_t saved_floats(const MesaInputs& inputs);

// Each throws std::invalid_argument naming the argument that is wrong.
void mesa_forward(const MesaInputs& inputs, const MesaOutputs& outputs);

// Gradients of sum(o * d_o) + sum(state * d_state); d_state may be absent.
void mesa_backward(const MesaInputs& inputs, const MesaSaved& saved, View<const float> d_o, View<const float> d_state,
                   const MesaGradients& gradients);

}  // namespace ovq::kernels
