// Causal softmax attention without an L x T matrix in memory (flash attention on the CPU).
//
//   o_i = sum_j softmax_j(beta * q_i . k_j) v_j      over j <= offset + i, and j > offset + i - window where a window
//   is set
//
// FLOPs: forward 4 * d per visible (query, key) pair, backward 10 * d (two of the five products recompute the scores).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/core/bfloat16.h"
#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

struct AttentionInputs {
  View<const float> q;          // [B, Tq, Hq, dk]
  View<const float> k;          // [B, Tk, Hkv, dk], Hq a multiple of Hkv: query head h reads kv head h / (Hq / Hkv)
  View<const float> v;          // [B, Tk, Hkv, dv]
  std::span<const float> beta;  // [Hq], within kLargestBeta
  int64_t window = 0;           // keys that a query sees, including its own; 0: all
  int64_t query_offset = 0;     // position of the first query among the keys (decode against a longer cache)
  // Packed sequences: B = 1 and sequence s holds the tokens cu_seqlens[s] ... cu_seqlens[s + 1] - 1. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
  // Instead of k and v: a cache stored as bfloat16, forward only. Few queries read it directly; many first widen it.
  View<const Bfloat16> narrow_k, narrow_v;
};

struct AttentionOutputs {
  View<float> o;    // [B, Tq, Hq, dv]
  View<float> lse;  // [B, Tq, Hq, 1], optional: natural log of the softmax's denominator; backward needs it
};

struct AttentionSaved {
  View<const float> o;
  View<const float> lse;
};

struct AttentionGradients {
  View<float> d_q, d_k, d_v;  // shaped as q, k, v; overwritten
  std::span<float> d_beta;    // [Hq]; overwritten
};

// A call whose inputs have been checked; forward and backward of the same call share one.
struct AttentionPlan {
  std::vector<Sequence> sequences;
};

// Throws std::invalid_argument naming `op` and the argument.
AttentionPlan plan_attention(const char* op, const AttentionInputs& inputs);

void attention_forward(const AttentionInputs& inputs, const AttentionOutputs& outputs);
// Overload for callers that already hold a plan: skips the checks.
void attention_forward(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOutputs& outputs);

// Gradients of sum(o * d_o).
void attention_backward(const AttentionInputs& inputs, const AttentionSaved& saved, View<const float> d_o,
                        const AttentionGradients& gradients);
void attention_backward(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionSaved& saved,
                        View<const float> d_o, const AttentionGradients& gradients);

}  // namespace ovq::kernels
