// Learning rate by step: linear warm-up, then a cosine down to a minimum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace ovq::train {

struct Schedule {
  double peak = 1e-3, minimum = 1e-5;
  int64_t warmup = 100, steps = 1000;

  // The rate at step 0, 1, ...
  double rate(int64_t step) const {
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const double done = static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, steps - warmup));
    const double share = (1 + std::cos(std::numbers::pi * std::min(1.0, done))) / 2;
    return std::min(peak, minimum) + (peak - std::min(peak, minimum)) * share;
  }
};

}  // namespace ovq::train
