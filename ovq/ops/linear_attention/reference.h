// Plain loops of decayed linear attention, one head of one sequence, token by token: the twin of
// ovq/ops/linear_attention/linear_attention.h.
//   S_t = e^{g_t} S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct LinearHead {
  Matrix<Scalar> q, k, v;  // [T, dk] twice, [T, dv]
  std::vector<Scalar> g;   // [T]
  Scalar scale = 1;
  Matrix<Scalar> state;  // [dk, dv]
};

template <class Scalar>
struct LinearHeadResult {
  Matrix<Scalar> o;                    // [T, dv]
  std::vector<Matrix<Scalar>> states;  // before each token, and after the last
};

template <class Scalar>
struct LinearHeadGradients {
  Matrix<Scalar> d_q, d_k, d_v;
  std::vector<Scalar> d_g;
  Matrix<Scalar> d_state;
};

// sum_ij a_ij b_ij
template <class Scalar>
Scalar inner(const Matrix<Scalar>& a, const Matrix<Scalar>& b) {
  return dot(a.data.data(), b.data.data(), static_cast<int64_t>(a.data.size()));
}

// matrix <- factor matrix
template <class Scalar>
void scale_all(Matrix<Scalar>& matrix, Scalar factor) {
  for (Scalar& x : matrix.data) x *= factor;
}

// matrix <- matrix + factor a b^T
template <class Scalar>
void add_outer(Matrix<Scalar>& matrix, Scalar factor, const Scalar* a, const Scalar* b) {
  for (int64_t i = 0; i < matrix.rows; ++i) add_scaled(matrix[i], factor * a[i], b, matrix.columns);
}

// to <- to + factor matrix x
template <class Scalar>
void add_product(const Matrix<Scalar>& matrix, Scalar factor, const Scalar* x, Scalar* to) {
  for (int64_t i = 0; i < matrix.rows; ++i) to[i] += factor * dot(matrix[i], x, matrix.columns);
}

// to <- to + factor matrix^T x
template <class Scalar>
void add_transposed_product(const Matrix<Scalar>& matrix, Scalar factor, const Scalar* x, Scalar* to) {
  for (int64_t i = 0; i < matrix.rows; ++i) add_scaled(to, factor * x[i], matrix[i], matrix.columns);
}

template <class Scalar>
LinearHeadResult<Scalar> linear_attention_forward(const LinearHead<Scalar>& head) {
  const int64_t time = head.q.rows;
  LinearHeadResult<Scalar> result{Matrix<Scalar>(time, head.v.columns), {head.state}};
  for (int64_t t = 0; t < time; ++t) {
    Matrix<Scalar> state = result.states.back();
    scale_all(state, std::exp(head.g[t]));
    add_outer(state, Scalar(1), head.k[t], head.v[t]);
    add_transposed_product(state, head.scale, head.q[t], result.o[t]);
    result.states.push_back(std::move(state));
  }
  return result;
}

// Gradients of sum(o * d_o) + sum(last state * d_state).
template <class Scalar>
LinearHeadGradients<Scalar> linear_attention_backward(const LinearHead<Scalar>& head,
                                                      const LinearHeadResult<Scalar>& forward,
                                                      const Matrix<Scalar>& d_o, Matrix<Scalar> d_state) {
  const int64_t time = head.q.rows, key_dim = head.q.columns;
  LinearHeadGradients<Scalar> d{Matrix<Scalar>(time, key_dim),
                                Matrix<Scalar>(time, key_dim),
                                Matrix<Scalar>(time, head.v.columns),
                                std::vector<Scalar>(time),
                                {}};
  for (int64_t t = time - 1; t >= 0; --t) {
    add_product(forward.states[t + 1], head.scale, d_o[t], d.d_q[t]);
    add_outer(d_state, head.scale, head.q[t], d_o[t]);
    add_product(d_state, Scalar(1), head.v[t], d.d_k[t]);
    add_transposed_product(d_state, Scalar(1), head.k[t], d.d_v[t]);
    scale_all(d_state, std::exp(head.g[t]));
    d.d_g[t] = inner(d_state, forward.states[t]);
  }
  d.d_state = std::move(d_state);
  return d;
}

}  // namespace ovq::kernels::reference
