// Plain loops of the short convolution of one sequence: the twin of ovq/ops/short_convolution/short_convolution.h.
//   y_t = f(bias + sum_j taps_j x_{t - width + 1 + j}),  f the identity or silu
#pragma once

#include <cmath>
#include <cstdint>

#include "ovq/core/reference_matrix.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct Convolution {
  Matrix<Scalar> x;       // [T, C]
  Matrix<Scalar> taps;    // [width, C]
  Matrix<Scalar> bias;    // [1, C]
  Matrix<Scalar> before;  // [width - 1, C]
  bool silu = false;

  const Scalar* input(int64_t t) const { return t >= 0 ? x[t] : before[before.rows + t]; }
  Scalar sum(int64_t t, int64_t c) const {
    Scalar sum = bias[0][c];
    for (int64_t j = 0; j < taps.rows; ++j) sum += taps[j][c] * input(t - taps.rows + 1 + j)[c];
    return sum;
  }
};

template <class Scalar>
struct ConvolutionGradients {
  Matrix<Scalar> d_x, d_taps, d_bias, d_before;
};

template <class Scalar>
Scalar sigmoid(Scalar x) {
  return 1 / (1 + std::exp(-x));
}

template <class Scalar>
Matrix<Scalar> short_convolution_forward(const Convolution<Scalar>& in) {
  Matrix<Scalar> y(in.x.rows, in.x.columns);
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t c = 0; c < y.columns; ++c) {
      const Scalar sum = in.sum(t, c);
      y[t][c] = in.silu ? sum * sigmoid(sum) : sum;
    }
  }
  return y;
}

// Gradients of sum(y * d_y).
template <class Scalar>
ConvolutionGradients<Scalar> short_convolution_backward(const Convolution<Scalar>& in, const Matrix<Scalar>& d_y) {
  const int64_t time = in.x.rows, channels = in.x.columns, width = in.taps.rows;
  ConvolutionGradients<Scalar> d{Matrix<Scalar>(time, channels), Matrix<Scalar>(width, channels),
                                 Matrix<Scalar>(1, channels), Matrix<Scalar>(width - 1, channels)};
  for (int64_t t = 0; t < time; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      const Scalar sum = in.sum(t, c), gate = sigmoid(sum);
      const Scalar gradient = d_y[t][c] * (in.silu ? gate * (1 + sum * (1 - gate)) : Scalar(1));
      d.d_bias[0][c] += gradient;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t from = t - width + 1 + j;
        d.d_taps[j][c] += gradient * in.input(from)[c];
        (from >= 0 ? d.d_x[from] : d.d_before[width - 1 + from])[c] += gradient * in.taps[j][c];
      }
    }
  }
  return d;
}

}  // namespace ovq::kernels::reference
