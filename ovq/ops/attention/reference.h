// Plain loops of causal softmax attention, one query head of one sequence: the twin of ovq/ops/attention/attention.h.
//
//   s_ij = beta * q_i . k_j       over j <= offset + i, and j > offset + i - window where a window is set
//   lse_i = log sum_j exp(s_ij)
//   o_i = sum_j exp(s_ij - lse_i) v_j
//
//   dP_ij = do_i . v_j            P_ij = exp(s_ij - lse_i)
//   dS_ij = P_ij (dP_ij - do_i . o_i)
//   dv_j = sum_i P_ij do_i        dk_j = sum_i beta dS_ij q_i
//   dq_i = sum_j beta dS_ij k_j   dbeta = sum_ij dS_ij (q_i . k_j)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct AttentionHead {
  Matrix<Scalar> q;     // [Tq, dk]
  Matrix<Scalar> k, v;  // [Tk, dk], [Tk, dv]
  Scalar beta = 1;
  int64_t window = 0;
  int64_t query_offset = 0;

  int64_t keys_end(int64_t i) const { return std::min(query_offset + i + 1, k.rows); }
  int64_t keys_begin(int64_t i) const { return window > 0 ? std::max<int64_t>(query_offset + i + 1 - window, 0) : 0; }
};

template <class Scalar>
struct AttentionHeadResult {
  Matrix<Scalar> o;         // [Tq, dv]
  std::vector<Scalar> lse;  // [Tq]
};

template <class Scalar>
struct AttentionHeadGradients {
  Matrix<Scalar> d_q, d_k, d_v;
  Scalar d_beta = 0;
};

template <class Scalar>
AttentionHeadResult<Scalar> attention_forward(const AttentionHead<Scalar>& head) {
  const auto& [q, k, v, beta, window, query_offset] = head;
  AttentionHeadResult<Scalar> result{Matrix<Scalar>(q.rows, v.columns), std::vector<Scalar>(q.rows)};
  for (int64_t i = 0; i < q.rows; ++i) {
    const int64_t begin = head.keys_begin(i), end = head.keys_end(i);
    std::vector<Scalar> logits;
    for (int64_t j = begin; j < end; ++j) logits.push_back(beta * dot(q[i], k[j], k.columns));
    result.lse[i] = log_sum_exp(logits);
    for (int64_t j = begin; j < end; ++j) {
      add_scaled(result.o[i], std::exp(logits[j - begin] - result.lse[i]), v[j], v.columns);
    }
  }
  return result;
}

// Gradients of sum(o * d_o).
template <class Scalar>
AttentionHeadGradients<Scalar> attention_backward(const AttentionHead<Scalar>& head,
                                                  const AttentionHeadResult<Scalar>& forward,
                                                  const Matrix<Scalar>& d_o) {
  const auto& [q, k, v, beta, window, query_offset] = head;
  AttentionHeadGradients<Scalar> gradients{Matrix<Scalar>(q.rows, q.columns), Matrix<Scalar>(k.rows, k.columns),
                                           Matrix<Scalar>(v.rows, v.columns)};
  for (int64_t i = 0; i < q.rows; ++i) {
    const Scalar delta = dot(d_o[i], forward.o[i], v.columns);
    for (int64_t j = head.keys_begin(i); j < head.keys_end(i); ++j) {
      const Scalar product = dot(q[i], k[j], k.columns);
      const Scalar p = std::exp(beta * product - forward.lse[i]);
      const Scalar d_s = p * (dot(d_o[i], v[j], v.columns) - delta);
      add_scaled(gradients.d_v[j], p, d_o[i], v.columns);
      add_scaled(gradients.d_k[j], beta * d_s, q[i], k.columns);
      add_scaled(gradients.d_q[i], beta * d_s, k[j], k.columns);
      gradients.d_beta += d_s * product;
    }
  }
  return gradients;
}

}  // namespace ovq::kernels::reference
