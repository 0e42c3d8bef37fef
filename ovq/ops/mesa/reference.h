// Plain loops of MesaNet's recurrence, one head of one sequence, token by token and with exact solves: the twin of
// ovq/ops/mesa/mesa.h.
//   H_t = e^g H_{t-1} + beta k k^T;  G_t = e^g G_{t-1} + beta k v^T;  q* = (H_t + diag(lambda))^(-1) q;  o = G_t^T q*
#pragma once

#include "ovq/ops/linear_attention/reference.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct MesaHead {
  Matrix<Scalar> q, k, v;       // [T, dk] twice, [T, dv]
  std::vector<Scalar> g, beta;  // [T]
  std::vector<Scalar> lambda;   // [dk]
  Matrix<Scalar> state;         // [H | G], [dk, dk + dv]; H symmetric
};

template <class Scalar>
struct MesaHeadResult {
  Matrix<Scalar> o, solution;          // [T, dv], [T, dk]
  std::vector<Matrix<Scalar>> states;  // [H | G] before each token, and after the last
};

template <class Scalar>
struct MesaHeadGradients {
  Matrix<Scalar> d_q, d_k, d_v;
  std::vector<Scalar> d_g, d_beta, d_lambda;
  Matrix<Scalar> d_state;
};

// (H + diag(lambda))^(-1) right by a Cholesky decomposition; H is the first columns of a state.
template <class Scalar>
std::vector<Scalar> mesa_solve(const Matrix<Scalar>& state, const std::vector<Scalar>& lambda, const Scalar* right) {
  const int64_t n = state.rows;
  Matrix<Scalar> l(n, n);
  std::vector<Scalar> x(right, right + n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const Scalar rest = state[i][j] + (i == j ? lambda[i] : Scalar(0)) - dot(l[i], l[j], j);
      l[i][j] = i == j ? std::sqrt(rest) : rest / l[j][j];
    }
  }
  for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - dot(l[i], x.data(), i)) / l[i][i];
  for (int64_t i = n - 1; i >= 0; --i) {
    for (int64_t j = i + 1; j < n; ++j) x[i] -= l[j][i] * x[j];
    x[i] /= l[i][i];
  }
  return x;
}

// [k | v] of token t
template <class Scalar>
std::vector<Scalar> mesa_written(const MesaHead<Scalar>& head, int64_t t) {
  std::vector<Scalar> written(head.k[t], head.k[t] + head.k.columns);
  written.insert(written.end(), head.v[t], head.v[t] + head.v.columns);
  return written;
}

template <class Scalar>
MesaHeadResult<Scalar> mesa_forward(const MesaHead<Scalar>& head) {
  const int64_t time = head.q.rows, key_dim = head.q.columns, value_dim = head.v.columns;
  MesaHeadResult<Scalar> result{Matrix<Scalar>(time, value_dim), Matrix<Scalar>(time, key_dim), {head.state}};
  for (int64_t t = 0; t < time; ++t) {
    Matrix<Scalar> state = result.states.back();
    scale_all(state, std::exp(head.g[t]));
    add_outer(state, head.beta[t], head.k[t], mesa_written(head, t).data());
    const std::vector<Scalar> solution = mesa_solve(state, head.lambda, head.q[t]);
    std::copy(solution.begin(), solution.end(), result.solution[t]);
    for (int64_t i = 0; i < key_dim; ++i) add_scaled(result.o[t], solution[i], state[i] + key_dim, value_dim);
    result.states.push_back(std::move(state));
  }
  return result;
}

// Gradients of sum(o * d_o) + sum(last state * d_state).
template <class Scalar>
MesaHeadGradients<Scalar> mesa_backward(const MesaHead<Scalar>& head, const MesaHeadResult<Scalar>& forward,
                                        const Matrix<Scalar>& d_o, Matrix<Scalar> d_state) {
  const int64_t time = head.q.rows, key_dim = head.q.columns, value_dim = head.v.columns;
  MesaHeadGradients<Scalar> d{Matrix<Scalar>(time, key_dim),
                              Matrix<Scalar>(time, key_dim),
                              Matrix<Scalar>(time, value_dim),
                              std::vector<Scalar>(time),
                              std::vector<Scalar>(time),
                              std::vector<Scalar>(key_dim),
                              {}};
  for (int64_t t = time - 1; t >= 0; --t) {
    const Matrix<Scalar>& state = forward.states[t + 1];
    std::vector<Scalar> right(key_dim);
    for (int64_t i = 0; i < key_dim; ++i) right[i] = dot(state[i] + key_dim, d_o[t], value_dim);
    std::vector<Scalar> d_read = mesa_solve(state, head.lambda, right.data());  // y, then [-y | do]
    for (int64_t i = 0; i < key_dim; ++i) {
      d.d_q[t][i] = d_read[i];
      d.d_lambda[i] -= d_read[i] * forward.solution[t][i];
      d_read[i] = -d_read[i];
    }
    d_read.insert(d_read.end(), d_o[t], d_o[t] + value_dim);
    add_outer(d_state, Scalar(1), forward.solution[t], d_read.data());
    // S = e^g S + beta k [k | v]^T
    const std::vector<Scalar> written = mesa_written(head, t);
    std::vector<Scalar> by_key(key_dim), by_written(key_dim + value_dim);
    add_product(d_state, Scalar(1), written.data(), by_key.data());
    add_transposed_product(d_state, head.beta[t], head.k[t], by_written.data());
    d.d_beta[t] = dot(by_key.data(), head.k[t], key_dim);
    for (int64_t i = 0; i < key_dim; ++i) d.d_k[t][i] = head.beta[t] * by_key[i] + by_written[i];
    std::copy(by_written.begin() + key_dim, by_written.end(), d.d_v[t]);
    scale_all(d_state, std::exp(head.g[t]));
    d.d_g[t] = inner(d_state, forward.states[t]);
  }
  d.d_state = std::move(d_state);
  return d;
}

}  // namespace ovq::kernels::reference
