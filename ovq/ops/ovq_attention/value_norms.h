// value_norms: a row of D_v is the mean of its tokens' values, rescaled to their average norm. See write_chunk.
#pragma once

#include <cmath>
#include <cstdint>

#include "ovq/ops/ovq_attention/members.h"

namespace ovq::kernels::detail {

// update_row for the mean `shrinkage` * row; the row becomes this mean, rescaled to the average norm of its tokens. A
// mean of zero stays zero and loses its norm.
template <class WeightOf>
void update_value(float* row, float& shrinkage, const float* tokens, int64_t stride, const Members& members,
                  int32_t member, float rate, int64_t dim, float* sum, const WeightOf& weight_of) {
  const double norm_before = norm_of(row, dim);
  double change = 0.0;
  for (int32_t p = member; p != kNone; p = members.next[p]) {
    change += weight_of(p) * (norm_of(tokens + p * stride, dim) - norm_before);
  }
  const auto norm = static_cast<float>(norm_before + rate * change);
  for (int64_t i = 0; i < dim; ++i) row[i] *= shrinkage;
  update_row(row, tokens, stride, members, member, rate, dim, sum, weight_of);
  const float mean_norm = norm_of(row, dim);
  shrinkage = 1.0f;
  if (!(norm > 0.0f) || !(mean_norm > 0.0f)) return;
  const float factor = norm / mean_norm;
  for (int64_t i = 0; i < dim; ++i) row[i] *= factor;
  shrinkage = mean_norm / norm;
}

// Turns the gradients g of the row y and r of its shrinkage s into those of the mean and of the norm n of y:
//   g <- (g - u (u . g)) / s + u r / n,  r <- u . g - r s / n,  u = y / n
inline void mean_gradient(float* g, float& r, const float* y, float s, int64_t dim) {
  const double n = norm_of(y, dim);
  if (!(n > 0.0) || !(s > 0.0f)) {
    r = 0.0f;
    return;
  }
  double radial = 0.0;
  for (int64_t i = 0; i < dim; ++i) radial += static_cast<double>(y[i]) * g[i];
  radial /= n;
  const auto along = static_cast<float>((r / n - radial / s) / n);
  for (int64_t i = 0; i < dim; ++i) g[i] = g[i] / s + y[i] * along;
  r = static_cast<float>(radial - r * s / n);
}

// g <- g + d_norm x / |x|, the gradient of |x|; a zero row has none
inline void add_norm_gradient(float d_norm, const float* x, int64_t dim, float* g) {
  const float norm = norm_of(x, dim);
  if (d_norm == 0.0f || !(norm > 0.0f)) return;
  const float factor = d_norm / norm;
  for (int64_t i = 0; i < dim; ++i) g[i] += factor * x[i];
}

// g . (a x - b y)
inline float along_scaled(const float* g, const float* x, float a, const float* y, float b, int64_t dim) {
  double sum = 0.0;
  for (int64_t i = 0; i < dim; ++i) sum += static_cast<double>(g[i]) * (a * x[i] - b * y[i]);
  return static_cast<float>(sum);
}

}  // namespace ovq::kernels::detail
