// Plain loops of the gate: the twin of ovq/ops/gated_mlp/gate.h.
#pragma once

#include <cmath>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

// gate_up [rows, 2 width] -> [rows, width]
template <class Scalar>
Matrix<Scalar> gate(const Matrix<Scalar>& gate_up) {
  Matrix<Scalar> a(gate_up.rows, gate_up.columns / 2);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t i = 0; i < a.columns; ++i) {
      const Scalar x = gate_up[row][i];
      a[row][i] = x / (1 + std::exp(-x)) * gate_up[row][a.columns + i];
    }
  }
  return a;
}

template <class Scalar>
Matrix<Scalar> gate_backward(const Matrix<Scalar>& gate_up, const Matrix<Scalar>& d_a) {
  Matrix<Scalar> d_gate_up(gate_up.rows, gate_up.columns);
  for (int64_t row = 0; row < d_a.rows; ++row) {
    for (int64_t i = 0; i < d_a.columns; ++i) {
      const Scalar x = gate_up[row][i], up = gate_up[row][d_a.columns + i], s = 1 / (1 + std::exp(-x));
      d_gate_up[row][i] = d_a[row][i] * up * s * (1 + x * (1 - s));
      d_gate_up[row][d_a.columns + i] = d_a[row][i] * x * s;
    }
  }
  return d_gate_up;
}

}  // namespace ovq::kernels::reference
