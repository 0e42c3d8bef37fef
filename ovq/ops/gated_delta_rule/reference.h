// Plain loops of the gated delta rule, one head of one sequence, token by token: the twin of
// ovq/ops/gated_delta_rule/gated_delta_rule.h.
//   S' = e^g S;  u = beta (v - S'^T k);  S = S' + k u^T;  o = scale S^T q
#pragma once

#include "ovq/ops/linear_attention/reference.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct DeltaHead {
  Matrix<Scalar> q, k, v;       // [T, dk] twice, [T, dv]
  std::vector<Scalar> g, beta;  // [T]
  Scalar scale = 1;
  Matrix<Scalar> state;  // [dk, dv]
};

template <class Scalar>
struct DeltaHeadGradients {
  Matrix<Scalar> d_q, d_k, d_v;
  std::vector<Scalar> d_g, d_beta;
  Matrix<Scalar> d_state;
};

// v - S'^T k of token t
template <class Scalar>
std::vector<Scalar> delta_error(const DeltaHead<Scalar>& head, const Matrix<Scalar>& decayed, int64_t t) {
  std::vector<Scalar> error(head.v[t], head.v[t] + head.v.columns);
  add_transposed_product(decayed, Scalar(-1), head.k[t], error.data());
  return error;
}

template <class Scalar>
LinearHeadResult<Scalar> gated_delta_rule_forward(const DeltaHead<Scalar>& head) {
  const int64_t time = head.q.rows;
  LinearHeadResult<Scalar> result{Matrix<Scalar>(time, head.v.columns), {head.state}};
  for (int64_t t = 0; t < time; ++t) {
    Matrix<Scalar> state = result.states.back();
    scale_all(state, std::exp(head.g[t]));
    const std::vector<Scalar> error = delta_error(head, state, t);
    add_outer(state, head.beta[t], head.k[t], error.data());
    add_transposed_product(state, head.scale, head.q[t], result.o[t]);
    result.states.push_back(std::move(state));
  }
  return result;
}

// Gradients of sum(o * d_o) + sum(last state * d_state).
template <class Scalar>
DeltaHeadGradients<Scalar> gated_delta_rule_backward(const DeltaHead<Scalar>& head,
                                                     const LinearHeadResult<Scalar>& forward, const Matrix<Scalar>& d_o,
                                                     Matrix<Scalar> d_state) {
  const int64_t time = head.q.rows, key_dim = head.q.columns, value_dim = head.v.columns;
  DeltaHeadGradients<Scalar> d{Matrix<Scalar>(time, key_dim),   Matrix<Scalar>(time, key_dim),
                               Matrix<Scalar>(time, value_dim), std::vector<Scalar>(time),
                               std::vector<Scalar>(time),       {}};
  for (int64_t t = time - 1; t >= 0; --t) {
    Matrix<Scalar> decayed = forward.states[t];
    scale_all(decayed, std::exp(head.g[t]));
    const std::vector<Scalar> error = delta_error(head, decayed, t);
    add_product(forward.states[t + 1], head.scale, d_o[t], d.d_q[t]);
    add_outer(d_state, head.scale, head.q[t], d_o[t]);
    // S = S' + k (beta error)^T
    add_product(d_state, head.beta[t], error.data(), d.d_k[t]);
    std::vector<Scalar> d_written(value_dim);
    add_transposed_product(d_state, Scalar(1), head.k[t], d_written.data());
    d.d_beta[t] = dot(d_written.data(), error.data(), value_dim);
    // error = v - S'^T k
    add_scaled(d.d_v[t], head.beta[t], d_written.data(), value_dim);
    add_product(decayed, Scalar(-1), d.d_v[t], d.d_k[t]);
    add_outer(d_state, Scalar(-1), head.k[t], d.d_v[t]);
    scale_all(d_state, std::exp(head.g[t]));
    d.d_g[t] = inner(d_state, forward.states[t]);
  }
  d.d_state = std::move(d_state);
  return d;
}

}  // namespace ovq::kernels::reference
