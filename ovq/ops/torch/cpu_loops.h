// What the ops' small loops on the CPU have in common: which tensors they take, sums, threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "ovq/core/parallel.h"
#include "ovq/ops/torch/backend.h"

namespace ovq::ops {

// The loops take float and double on the CPU; ATen calls serve the rest.
inline bool has_loops(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

// Whether an op runs as such a loop.
inline bool runs_loops(const at::Tensor& x) {
  return has_loops(x) && resolved(Backend::automatic) != Backend::composed;
}

// sum_i a_i b_i; partial sums side by side, so that the compiler may use vectors.
template <class T>
T dot(const T* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  T sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return sum + lanes[0];
}

// body(begin, end) for consecutive blocks of [0, count). `cost`: elements touched per index; little work stays on one
// thread.
template <class Body>
void parallel_blocks(int64_t count, int64_t block, int64_t cost, Body&& body) {
  const int threads = count * cost < 1 << 15 ? 1 : at::get_num_threads();
  kernels::parallel_for((count + block - 1) / block, threads,
                        [&](int64_t index, int) { body(index * block, std::min(count, (index + 1) * block)); });
}

}  // namespace ovq::ops
