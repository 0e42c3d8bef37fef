#include "ovq/train/adamw_update.h"

#include <cmath>

namespace ovq::train {

void adamw_update(const AdamWFactors& factors, int64_t count, const float* __restrict g, float* __restrict m,
                  float* __restrict v, float* __restrict p) {
  const auto [b1, b2, shrinkage, size, inverse_root, eps] = factors;
  for (int64_t i = 0; i < count; ++i) {
    m[i] = b1 * m[i] + (1 - b1) * g[i];
    v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
    p[i] = shrinkage * p[i] - size * m[i] / (std::sqrt(v[i]) * inverse_root + eps);
  }
}

double sum_of_squares(int64_t count, const float* values) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  for (const double lane : lanes) sum += lane;
  return sum;
}

void scale(float factor, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace ovq::train
