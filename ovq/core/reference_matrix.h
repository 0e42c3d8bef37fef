// Dense row-major matrices and the basic loops of the plain formulas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ovq/core/view.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<Scalar> data;

  Matrix() = default;
  Matrix(int64_t rows, int64_t columns) : rows(rows), columns(columns), data(rows * columns) {}

  Scalar* operator[](int64_t row) { return data.data() + row * columns; }
  const Scalar* operator[](int64_t row) const { return data.data() + row * columns; }

  void append(const Scalar* row) {
    data.insert(data.end(), row, row + columns);
    ++rows;
  }
  Matrix slice(int64_t first, int64_t count) const {
    Matrix part(count, columns);
    std::copy((*this)[first], (*this)[first + count], part.data.begin());
    return part;
  }
};

// The rows `first` ... `first + count - 1` of one head.
template <class Scalar>
Matrix<Scalar> load(View<const float> view, int64_t batch, int64_t head, int64_t first, int64_t count) {
  Matrix<Scalar> matrix(count, view.dim);
  for (int64_t t = 0; t < count; ++t) {
    const float* row = view.row(batch, first + t, head);
    std::copy(row, row + view.dim, matrix[t]);
  }
  return matrix;
}

template <class Scalar>
Scalar dot(const Scalar* a, const Scalar* b, int64_t size) {
  Scalar sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

// y <- y + factor * x
template <class Scalar>
void add_scaled(Scalar* y, Scalar factor, const Scalar* x, int64_t size) {
  for (int64_t i = 0; i < size; ++i) y[i] += factor * x[i];
}

// Adds x to the rows from `first` on.
template <class Scalar>
void add_rows(Matrix<Scalar>& matrix, int64_t first, const Matrix<Scalar>& x) {
  for (int64_t row = 0; row < x.rows; ++row) add_scaled(matrix[first + row], Scalar(1), x[row], x.columns);
}

// log(sum(exp(logits))); -inf without logits.
template <class Scalar>
Scalar log_sum_exp(const std::vector<Scalar>& logits) {
  Scalar max = -std::numeric_limits<Scalar>::infinity();
  for (Scalar logit : logits) max = std::max(max, logit);
  Scalar sum = 0;
  for (Scalar logit : logits) sum += std::exp(logit - max);
  return logits.empty() ? max : max + std::log(sum);
}

}  // namespace ovq::kernels::reference
