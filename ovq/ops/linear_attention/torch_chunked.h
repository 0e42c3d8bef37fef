// The chunk form of decayed linear attention, forward and backward, on chunked tensors (see chunks.h):
//   S_t = e^{g_t} S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t
// In a chunk, with G the sums of g and S the state before it:
//   O = scale (diag(e^G) Q S + (Q K^T . L) V),  L_ij = e^{G_i - G_j} for i >= j,   S <- e^{G_C} S + K^T diag(e^{G_C -
//   G}) V
// Cost per token and head: 2 dk dv + C (dk + dv) multiply-adds forward, about 2.5 times that backward.
#pragma once

#include "ovq/ops/recurrence/torch_chunks.h"

namespace ovq::ops {

struct ChunkedLinear {
  at::Tensor q, k, v;  // [M, N, C, dk], [M, N, C, dk], [M, N, C, dv]
  Decay decay;
  double scale = 1;
  at::Tensor states;  // [M, N + 1, dk, dv] at the chunk borders; see add_states
};

// Fills in `states` from the one before the first chunk, [M, dk, dv].
void add_states(ChunkedLinear& x, const at::Tensor& start);

// -> o [M, N, C, dv]
at::Tensor chunked_linear_forward(const ChunkedLinear& x);

// d_o [M, N, C, dv] and the gradient by the last state, [M, dk, dv]; d_q is that of all paths but the decay's
struct ChunkedLinearGradients {
  at::Tensor d_q, d_k, d_v;  // as q, k, v
  at::Tensor d_g;            // [M, N, C]
  at::Tensor d_start;        // [M, dk, dv]
};
ChunkedLinearGradients chunked_linear_backward(const ChunkedLinear& x, const at::Tensor& d_o, const at::Tensor& d_end);

// Only the gradient by q.
at::Tensor chunked_linear_backward_q(const ChunkedLinear& x, const at::Tensor& d_o);

}  // namespace ovq::ops
