// Plain loops of the products: the twins of ovq/ops/products/matvec.h and products.h.
#pragma once

#include <cmath>
#include <vector>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

// x [rows, depth], weights [outputs, depth] each; add [rows, outputs] or empty
template <class Scalar>
Matrix<Scalar> matvec(const Matrix<Scalar>& x, const std::vector<Matrix<Scalar>>& weights, const Matrix<Scalar>& add,
                      bool gated) {
  int64_t outputs = 0;
  for (const Matrix<Scalar>& weight : weights) outputs += weight.rows;
  Matrix<Scalar> y(x.rows, outputs);
  for (int64_t row = 0; row < x.rows; ++row) {
    int64_t column = 0;
    for (const Matrix<Scalar>& weight : weights) {
      for (int64_t o = 0; o < weight.rows; ++o, ++column) {
        y[row][column] = dot(x[row], weight[o], x.columns) + (add.rows > 0 ? add[row][column] : Scalar(0));
      }
    }
  }
  if (!gated) return y;
  Matrix<Scalar> a(x.rows, outputs / 2);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t o = 0; o < a.columns; ++o) {
      const Scalar gate = y[row][o];
      a[row][o] = gate / (1 + std::exp(-gate)) * y[row][a.columns + o];
    }
  }
  return a;
}

// a b + add; add [rows, columns] or empty
template <class Scalar>
Matrix<Scalar> product(const Matrix<Scalar>& a, const Matrix<Scalar>& b, const Matrix<Scalar>& add) {
  Matrix<Scalar> c(a.rows, b.columns);
  if (add.rows > 0) c = add;
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t k = 0; k < b.rows; ++k) add_scaled(c[row], a[row][k], b[k], b.columns);
  }
  return c;
}

// a^T b
template <class Scalar>
Matrix<Scalar> outer_product(const Matrix<Scalar>& a, const Matrix<Scalar>& b) {
  Matrix<Scalar> c(a.columns, b.columns);
  for (int64_t k = 0; k < a.rows; ++k) {
    for (int64_t row = 0; row < a.columns; ++row) add_scaled(c[row], a[k][row], b[k], b.columns);
  }
  return c;
}

}  // namespace ovq::kernels::reference
