// The recurrence of Mamba-2 (arXiv 2405.21060), with states transposed:
//   S_t = e^{dt_t a} S_{t-1} + b_t (dt_t x_t)^T,   o_t = S_t^T c_t + d x_t
// which is decayed linear attention (linear_attention.h) with queries c, keys b, values dt x and log decays dt a. Heads
// of a group share b and c, and with them the scores c_i . b_j.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

struct SsdInputs {
  View<const float> x;          // [B, T, H, P]
  View<const float> dt;         // [B, T, H, 1], positive
  std::span<const float> a, d;  // [H]; a negative
  View<const float> b, c;       // [B, T, G, N]; heads take groups in order, H / G heads each
  View<const float> state;      // before the first token of each sequence, [sequences, N, H, P]; absent: zeros
  // Packed sequences: B = 1 and sequence s holds the tokens cu_seqlens[s] ... cu_seqlens[s + 1] - 1. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
};

struct SsdOutputs {
  View<float> o;           // [B, T, H, P]
  View<float> state;       // after the last tokens, [sequences, N, H, P]; may be the inputs' state; absent: not wanted
  std::span<float> saved;  // for backward, as many as saved_floats() says; empty: not wanted
};

struct SsdGradients {
  View<float> d_x, d_dt, d_b, d_c;  // shaped as the inputs; overwritten
  std::span<float> d_a, d_d;        // [H]; overwritten
  View<float> d_state;              // absent: not wanted
};

int64_t saved_floats(const SsdInputs& inputs);

// Each throws std::invalid_argument naming the argument that is wrong.
void ssd_forward(const SsdInputs& inputs, const SsdOutputs& outputs);

// Gradients of sum(o * d_o) + sum(state * d_state); d_state may be absent.
void ssd_backward(const SsdInputs& inputs, std::span<const float> saved, View<const float> d_o,
                  View<const float> d_state, const SsdGradients& gradients);

}  // namespace ovq::kernels
