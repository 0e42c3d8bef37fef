// Plain loops of the steps from a projection to queries, keys and values: the twin of
// ovq/ops/projections/projections.h. Its gradients have autograd of the same formula as their truth, in
// tests/projections/torch_test.cpp.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "ovq/core/reference_matrix.h"
#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct ProjectionSteps {
  Matrix<Scalar> taps;            // [channels, width]; empty: none
  std::vector<Scalar> taps_bias;  // empty: zeros
  bool silu = false;
  std::optional<Scalar> unit_eps;
  int64_t head_dim = 1;
  Shift shift = Shift::none;
  Scalar share = 0;
  Matrix<Scalar> angles;                     // [T, head_dim]; empty: none
  Matrix<Scalar> inputs_before, row_before;  // [width - 1, channels], [1, channels]; empty: nothing before
};

template <class Scalar>
struct ProjectedRows {
  Matrix<Scalar> o, inputs_after, row_after;
};

// y [T, channels] of one part and one sequence
template <class Scalar>
ProjectedRows<Scalar> projected_rows(const Matrix<Scalar>& y, const ProjectionSteps<Scalar>& part) {
  const int64_t time = y.rows, channels = y.columns, kept = part.taps.rows > 0 ? part.taps.columns - 1 : 0;
  ProjectedRows<Scalar> result{y, Matrix<Scalar>(0, channels), Matrix<Scalar>(0, channels)};
  Matrix<Scalar> inputs = part.inputs_before.rows > 0 ? part.inputs_before : Matrix<Scalar>(kept, channels), z = y;
  for (int64_t t = 0; t < time; ++t) inputs.append(y[t]);
  for (int64_t row = 0; row < kept; ++row) result.inputs_after.append(inputs[time + row]);
  for (int64_t t = 0; t < time; ++t) {
    for (int64_t c = 0; c < channels && part.taps.rows > 0; ++c) {
      z[t][c] = part.taps_bias.empty() ? Scalar(0) : part.taps_bias[c];
      for (int64_t j = 0; j <= kept; ++j) z[t][c] += part.taps[c][j] * inputs[t + j][c];
    }
    for (int64_t c = 0; c < channels && part.silu; ++c) z[t][c] /= 1 + std::exp(-z[t][c]);
    for (int64_t c = 0; c < channels && part.unit_eps; c += part.head_dim) {
      const Scalar norm = std::sqrt(dot(z[t] + c, z[t] + c, part.head_dim) + *part.unit_eps);
      for (int64_t i = c; i < c + part.head_dim; ++i) z[t][i] /= norm;
    }
  }
  for (int64_t t = 0; t < time; ++t) {
    const Scalar* const first = part.row_before.rows > 0 ? part.row_before[0] : z[0];
    const Scalar* const before = t > 0 ? z[t - 1] : first;
    Scalar* const o = result.o[t];
    for (int64_t c = 0; c < channels; ++c) {
      o[c] = z[t][c];
      if (part.shift == Shift::previous) o[c] = before[c];
      if (part.shift == Shift::mean) o[c] = part.share * before[c] + (1 - part.share) * z[t][c];
    }
    const int64_t half = part.head_dim / 2;
    for (int64_t c = 0; c < channels && part.angles.rows > 0; c += part.head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const Scalar cosine = part.angles[t][i], sine = part.angles[t][half + i];
        const Scalar a = o[c + i], b = o[c + half + i];
        o[c + i] = a * cosine - b * sine;
        o[c + half + i] = a * sine + b * cosine;
      }
    }
  }
  if (time > 0) result.row_after.append(z[time - 1]);
  if (time == 0 && part.row_before.rows > 0) result.row_after = part.row_before;
  return result;
}

}  // namespace ovq::kernels::reference
