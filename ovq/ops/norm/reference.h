// Plain loops of the norms: the twin of ovq/ops/norm/norm.h.
#pragma once

#include <cmath>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

// Of one group, or of a row with weight == nullptr and divisor 1 for l2_norm.
template <class Scalar>
void norm_row(const Scalar* x, const Scalar* weight, int64_t size, Scalar divisor, Scalar eps, Scalar* y) {
  const Scalar r = 1 / std::sqrt(dot(x, x, size) / divisor + eps);
  for (int64_t i = 0; i < size; ++i) y[i] = x[i] * r * (weight == nullptr ? Scalar(1) : weight[i]);
}

// d_x <- the gradient; d_weight (or null) gets it added.
template <class Scalar>
void norm_row_backward(const Scalar* d_y, const Scalar* x, const Scalar* weight, int64_t size, Scalar divisor,
                       Scalar eps, Scalar* d_x, Scalar* d_weight) {
  const Scalar r = 1 / std::sqrt(dot(x, x, size) / divisor + eps);
  Scalar sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    d_x[i] = d_y[i] * (weight == nullptr ? Scalar(1) : weight[i]);
    sum += d_x[i] * x[i];
    if (d_weight != nullptr) d_weight[i] += d_y[i] * x[i] * r;
  }
  for (int64_t i = 0; i < size; ++i) d_x[i] = r * (d_x[i] - x[i] * r * r * sum / divisor);
}

// x [rows, width], weight [1, width] -> [rows, width]
template <class Scalar>
Matrix<Scalar> rms_norm(const Matrix<Scalar>& x, const Matrix<Scalar>& weight, int64_t groups, Scalar eps) {
  const int64_t size = x.columns / groups;
  Matrix<Scalar> y(x.rows, x.columns);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t i = 0; i < x.columns; i += size) {
      norm_row(x[row] + i, weight[0] + i, size, static_cast<Scalar>(size), eps, y[row] + i);
    }
  }
  return y;
}

template <class Scalar>
struct RmsNormGradients {
  Matrix<Scalar> d_x, d_weight;  // [rows, width], [1, width]
};
template <class Scalar>
RmsNormGradients<Scalar> rms_norm_backward(const Matrix<Scalar>& d_y, const Matrix<Scalar>& x,
                                           const Matrix<Scalar>& weight, int64_t groups, Scalar eps) {
  const int64_t size = x.columns / groups;
  RmsNormGradients<Scalar> result{Matrix<Scalar>(x.rows, x.columns), Matrix<Scalar>(1, x.columns)};
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t i = 0; i < x.columns; i += size) {
      norm_row_backward(d_y[row] + i, x[row] + i, weight[0] + i, size, static_cast<Scalar>(size), eps,
                        result.d_x[row] + i, result.d_weight[0] + i);
    }
  }
  return result;
}

template <class Scalar>
Matrix<Scalar> l2_norm(const Matrix<Scalar>& x, Scalar eps) {
  Matrix<Scalar> y(x.rows, x.columns);
  for (int64_t row = 0; row < x.rows; ++row) {
    norm_row<Scalar>(x[row], nullptr, x.columns, Scalar(1), eps, y[row]);
  }
  return y;
}

template <class Scalar>
Matrix<Scalar> l2_norm_backward(const Matrix<Scalar>& d_y, const Matrix<Scalar>& x, Scalar eps) {
  Matrix<Scalar> d_x(x.rows, x.columns);
  for (int64_t row = 0; row < x.rows; ++row) {
    norm_row_backward<Scalar>(d_y[row], x[row], nullptr, x.columns, Scalar(1), eps, d_x[row], nullptr);
  }
  return d_x;
}

}  // namespace ovq::kernels::reference
