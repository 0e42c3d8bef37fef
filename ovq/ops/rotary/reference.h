// Plain loops of the rotation: the twin of ovq/ops/rotary/rotary.h.
#pragma once

#include <cmath>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

// Rows of x at the positions first_position, first_position + 1, ..., turned; direction -1 turns back.
template <class Scalar>
Matrix<Scalar> rotary(const Matrix<Scalar>& x, int64_t first_position, double base, Scalar direction = 1) {
  Matrix<Scalar> y(x.rows, x.columns);
  const int64_t half = x.columns / 2;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(first_position + t) * std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
      const Scalar cosine = static_cast<Scalar>(std::cos(angle)),
                   sine = direction * static_cast<Scalar>(std::sin(angle));
      y[t][i] = x[t][i] * cosine - x[t][half + i] * sine;
      y[t][half + i] = x[t][i] * sine + x[t][half + i] * cosine;
    }
  }
  return y;
}

}  // namespace ovq::kernels::reference
