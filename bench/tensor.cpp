#include "bench/tensor.h"

#include <cmath>
#include <numbers>

#include "ovq/base/random.h"
#include "ovq/core/parallel.h"

namespace ovq::bench {
namespace {

float uniform(Random& random) { return (static_cast<float>(random.next() >> 40) + 0.5f) * 0x1p-24f; }  // in (0, 1)

void fill_normal(float* row, int64_t count, uint64_t seed) {
  Random random(seed);
  for (int64_t i = 0; i < count; i += 2) {
    const float radius = std::sqrt(-2 * std::log(uniform(random)));
    const float angle = 2 * std::numbers::pi_v<float> * uniform(random);
    row[i] = radius * std::cos(angle);
    if (i + 1 < count) row[i + 1] = radius * std::sin(angle);
  }
}

template <class Finish>
Tensor random_rows(const Shape& shape, uint64_t seed, Finish&& finish) {
  Tensor tensor(shape);
  kernels::parallel_for(shape.batch * shape.time, kernels::max_threads(), [&](int64_t i, int) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      float* row = tensor.view().row(i / shape.time, i % shape.time, h);
      fill_normal(row, shape.dim, (seed << 40) + static_cast<uint64_t>(i * shape.heads + h));
      finish(row);
    }
  });
  return tensor;
}

}  // namespace

Tensor normal(const Shape& shape, uint64_t seed) {
  return random_rows(shape, seed, [](float*) {});
}

Tensor unit_rows(const Shape& shape, uint64_t seed) {
  return random_rows(shape, seed, [&](float* row) {
    float sum = 0;
    for (int64_t i = 0; i < shape.dim; ++i) sum += row[i] * row[i];
    const float scale = 1 / std::sqrt(sum);
    for (int64_t i = 0; i < shape.dim; ++i) row[i] *= scale;
  });
}

Inputs::Inputs(const Shape& shape, uint64_t seed)
    : q(unit_rows(shape, 3 * seed)),
      k(unit_rows(shape, 3 * seed + 1)),
      v(normal(shape, 3 * seed + 2)),
      beta(shape.heads, std::sqrt(static_cast<float>(shape.dim))),
      weights(normal({.heads = shape.heads, .dim = 1, .time = shape.time, .batch = shape.batch}, 3 * seed + 100)) {
  for (int64_t i = 0; i < weights.size(); ++i) weights.data()[i] = 1 / (1 + std::exp(-weights.data()[i]));
}

}  // namespace ovq::bench
