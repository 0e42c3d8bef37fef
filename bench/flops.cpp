#include "bench/flops.h"

#include <algorithm>

namespace ovq::bench {
namespace {

double visible_pairs(int64_t time, int64_t window) {
  const auto t = static_cast<double>(time);
  if (window <= 0 || window >= time) return t * (t + 1) / 2;
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (t - w) * w;
}

// Calls visit(tokens of the chunk, size of the dictionary it reads) for each chunk; returns the final size.
template <class Visit>
int64_t for_each_chunk(const kernels::OvqOptions& options, int64_t time, Visit&& visit) {
  int64_t size = 0;
  for (int64_t first = 0; first < time; first += options.chunk) {
    const int64_t last = first + options.chunk;
    visit(std::min(last, time) - first, size);
    if (last <= time) size += kernels::new_centroid_count(options, size, last);
  }
  return size;
}

// Sum over tokens of (per_centroid * n + per_chunk * L), times batch, heads and dim.
double ovq_flops(const Shape& shape, const kernels::OvqOptions& options, double per_centroid, double per_chunk) {
  double sum = 0;
  for_each_chunk(options, shape.time, [&](int64_t tokens, int64_t size) {
    sum += static_cast<double>(tokens) *
           (per_centroid * static_cast<double>(size) + per_chunk * static_cast<double>(options.chunk));
  });
  return sum * static_cast<double>(shape.batch * shape.heads * shape.dim);
}

}  // namespace

double attention_flops_forward(const Shape& shape, int64_t window) {
  return 4 * static_cast<double>(shape.batch * shape.dim * shape.heads) * visible_pairs(shape.time, window);
}

double attention_flops_backward(const Shape& shape, int64_t window) {
  return 10 * static_cast<double>(shape.batch * shape.dim * shape.heads) * visible_pairs(shape.time, window);
}

double ovq_flops_forward(const Shape& shape, const kernels::OvqOptions& options) {
  return ovq_flops(shape, options, 4 + 2, 2);
}

double ovq_flops_backward(const Shape& shape, const kernels::OvqOptions& options) {
  return ovq_flops(shape, options, 10, 5);
}

int64_t final_size(const kernels::OvqOptions& options, int64_t time) {
  return for_each_chunk(options, time, [](int64_t, int64_t) {});
}

}  // namespace ovq::bench
