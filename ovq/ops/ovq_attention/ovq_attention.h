// Online vector-quantized attention: attention over a dictionary of at most N centroids, learned while the sequence is
// read, and over the current chunk in its original form. docs/semantics.md defines the computation exactly.
//
//   o_t = softmax(beta * q_t . [D_k ; K_<=t]^T + [log counts ; 0]) . [D_v ; V_<=t]
//
// With a weight w_t per token and kv head, the 0 becomes log w, counts are sums of weights, and centroids are weighted
// means.
//
// FLOPs per token and d, n the dictionary's size: forward 4 n + 2 L per query head and 2 n per kv head (the search for
// the nearest centroid, in the same pass over the dictionary); backward 10 n + 5 L per query head.
// Memory beyond inputs and outputs: one dictionary per thread (or the states); backward adds its gradient and an undo
// log of at most T (dk + dv) floats per thread. Nothing of size L x n.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "ovq/core/sequences.h"
#include "ovq/core/view.h"
#include "ovq/ops/ovq_attention/options.h"
#include "ovq/ops/ovq_attention/state.h"

namespace ovq::kernels {

struct OvqInputs {
  View<const float> q;          // [B, T, Hq, dk]
  View<const float> k;          // [B, T, Hkv, dk], Hq a multiple of Hkv: query head h reads kv head h / (Hq / Hkv)
  View<const float> v;          // [B, T, Hkv, dv]
  std::span<const float> beta;  // [Hq], within kLargestBeta
  View<const float> weights;  // [B, T, Hkv, 1], positive, at most kLargestWeight; given if and only if options.weighted
  OvqOptions options;
  // Packed sequences: B = 1 and sequence s holds the tokens cu_seqlens[s] ... cu_seqlens[s + 1] - 1. Empty: not packed.
  std::span<const int64_t> cu_seqlens;
};

// The properties of a state that a call continues.
struct OvqStateInfo {
  OvqShape shape;
  OvqOptions options;
  int64_t position = 0, size = 0;
};

// A checked sequence of a call, together with the position and pending tokens of its state.
struct OvqSequence {
  Sequence tokens;
  int64_t state = -1;              // index among the states; -1: none
  int64_t position = 0, size = 0;  // before the call
  int64_t pending = 0;
  int64_t assignments = 0;  // offset of its [pending + length, Hkv] assignments

  // The row of the assignments for a position in the sequence.
  int64_t assignment_row(int64_t token) const { return token - (position - pending); }
};

// A call whose inputs and states have been checked. It holds no data: forward and backward of the same call share one.
struct OvqPlan {
  std::vector<OvqSequence> sequences;
  int64_t assignments = 0;  // elements of the assignments
  int64_t states = 0;       // number of states that the call continues
};

// Throws std::invalid_argument naming `op` and the argument.
OvqPlan plan_ovq_attention(const char* op, const OvqInputs& inputs, std::span<const OvqStateInfo> states = {});

// The centroid of each token: for a sequence first its pending tokens (of the incoming state), then the new ones: [B,
// pending + T, Hkv], or for packed sequences one block [pending_s + T_s, Hkv] after another.
//   a >= 0         joined centroid a
//   a < 0          founded centroid ~a
//   kUnassigned    its chunk is not written yet
inline constexpr int32_t kUnassigned = std::numeric_limits<int32_t>::min();

// The number of assignments for these inputs.
int64_t ovq_assignment_count(const OvqInputs& inputs, std::span<const OvqState> states = {});

struct OvqOutputs {
  View<float> o;                   // [B, T, Hq, dv]
  View<float> lse;                 // [B, T, Hq, 1], optional: natural log-sum-exp; backward needs it
  std::span<int32_t> assignments;  // optional; backward needs them
};

// `states`, if any, are read and updated in place: one for the batch, or one per packed sequence. Their options must
// equal `inputs.options` except for `centroids`, which applies from the next write. `forced` replaces the choice of
// centroids by given assignments.
void ovq_attention_forward(const OvqInputs& inputs, const OvqOutputs& outputs, std::span<OvqState> states = {},
                           std::span<const int32_t> forced = {});
// Overload for callers that already hold a plan of these inputs and states: skips the checks.
void ovq_attention_forward(const OvqPlan& plan, const OvqInputs& inputs, const OvqOutputs& outputs,
                           std::span<OvqState> states, std::span<const int32_t> forced = {});

// Gradients with respect to one state: [B, n, Hkv, dk], [B, n, Hkv, dv], [B, pending, Hkv, dk], [B, pending, Hkv, dv];
// with weights also [B, n, Hkv, 1] and [B, pending, Hkv, 1], with value_norms [B, n, Hkv, 1]. An input view without
// data counts as zero; an output view without data is not computed.
template <class T>
struct OvqStateGradients {
  View<T> keys, values, pending_keys, pending_values;
  View<T> counts = {}, pending_weights = {};
  View<T> shrinkage = {};
};

struct OvqSaved {
  View<const float> o;
  View<const float> lse;
  std::span<const int32_t> assignments;
  // The states before forward; empty if there were none. Gradients of final states need them, even if they are at
  // position 0.
  std::span<const OvqState> initial;
};

struct OvqOutputGradients {
  View<const float> d_o;
  std::span<const OvqStateGradients<const float>> d_final;  // one per state; optional
};

struct OvqGradients {
  View<float> d_q, d_k, d_v;                            // overwritten
  std::span<float> d_beta;                              // [Hq]; overwritten
  std::span<const OvqStateGradients<float>> d_initial;  // one per state; optional; overwritten
  View<float> d_weights = {};                           // [B, T, Hkv, 1], with weights; overwritten
};

void ovq_attention_backward(const OvqInputs& inputs, const OvqSaved& saved, const OvqOutputGradients& output_gradients,
                            const OvqGradients& gradients);
// Overload with the plan of the forward: skips the checks, so all arguments must belong to that call.
void ovq_attention_backward(const OvqPlan& plan, const OvqInputs& inputs, const OvqSaved& saved,
                            const OvqOutputGradients& output_gradients, const OvqGradients& gradients);

}  // namespace ovq::kernels
