// Plain loops of Mamba-2's recurrence, one head of one sequence: the twin of ovq/ops/ssd/ssd.h.
//   S_t = e^{dt_t a} S_{t-1} + b_t (dt_t x_t)^T,   o_t = S_t^T c_t + d x_t
#pragma once

#include "ovq/ops/linear_attention/reference.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct SsdHead {
  Matrix<Scalar> x;        // [T, P]
  std::vector<Scalar> dt;  // [T]
  Scalar a = 0, d = 0;
  Matrix<Scalar> b, c;   // [T, N]
  Matrix<Scalar> state;  // [N, P]

  LinearHead<Scalar> linear() const {
    LinearHead<Scalar> head{.q = c, .k = b, .v = x, .g = dt, .scale = 1, .state = state};
    for (int64_t t = 0; t < x.rows; ++t) {
      head.g[t] = dt[t] * a;
      for (int64_t i = 0; i < x.columns; ++i) head.v[t][i] = dt[t] * x[t][i];
    }
    return head;
  }
};

template <class Scalar>
struct SsdHeadGradients {
  Matrix<Scalar> d_x;
  std::vector<Scalar> d_dt;
  Scalar d_a = 0, d_d = 0;
  Matrix<Scalar> d_b, d_c, d_state;
};

template <class Scalar>
LinearHeadResult<Scalar> ssd_forward(const SsdHead<Scalar>& head) {
  LinearHeadResult<Scalar> result = linear_attention_forward(head.linear());
  for (int64_t t = 0; t < head.x.rows; ++t) add_scaled(result.o[t], head.d, head.x[t], head.x.columns);
  return result;
}

// Gradients of sum(o * d_o) + sum(last state * d_state).
template <class Scalar>
SsdHeadGradients<Scalar> ssd_backward(const SsdHead<Scalar>& head, const LinearHeadResult<Scalar>& forward,
                                      const Matrix<Scalar>& d_o, const Matrix<Scalar>& d_state) {
  const int64_t columns = head.x.columns;
  LinearHeadGradients<Scalar> linear = linear_attention_backward(head.linear(), forward, d_o, d_state);
  SsdHeadGradients<Scalar> d{.d_x = Matrix<Scalar>(head.x.rows, columns),
                             .d_dt = std::vector<Scalar>(head.x.rows),
                             .d_b = linear.d_k,
                             .d_c = linear.d_q,
                             .d_state = linear.d_state};
  for (int64_t t = 0; t < head.x.rows; ++t) {
    add_scaled(d.d_x[t], head.dt[t], linear.d_v[t], columns);
    add_scaled(d.d_x[t], head.d, d_o[t], columns);
    d.d_dt[t] = dot(linear.d_v[t], head.x[t], columns) + head.a * linear.d_g[t];
    d.d_a += head.dt[t] * linear.d_g[t];
    d.d_d += dot(d_o[t], head.x[t], columns);
  }
  return d;
}

}  // namespace ovq::kernels::reference
