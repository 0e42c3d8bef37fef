// Tensors [batch, time, heads, dim] that own their memory, and the inputs of the benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/flops.h"
#include "ovq/core/buffer.h"
#include "ovq/core/view.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"

namespace ovq::bench {

class Tensor {
 public:
  explicit Tensor(const Shape& shape)
      : shape_(shape), data_(kernels::Buffer<float>::zeros(shape.batch * shape.time * shape.heads * shape.dim)) {}

  kernels::View<float> view() const {
    return kernels::View<float>::contiguous(data_.data(), shape_.batch, shape_.time, shape_.heads, shape_.dim);
  }
  // `count` time steps from `first` on, of the first sequence.
  kernels::View<float> slice(int64_t first, int64_t count) const {
    return kernels::View<float>::contiguous(data_.data() + first * shape_.heads * shape_.dim, 1, count, shape_.heads,
                                            shape_.dim);
  }
  float* data() const { return data_.data(); }
  int64_t size() const { return data_.size(); }
  int64_t nbytes() const { return data_.nbytes(); }

 private:
  Shape shape_;
  kernels::Buffer<float> data_;
};

// One number per token and head
inline Tensor per_row(Shape shape) {
  shape.dim = 1;
  return Tensor(shape);
}
Tensor normal(const Shape& shape, uint64_t seed);
Tensor unit_rows(const Shape& shape, uint64_t seed);  // normal, each row scaled to norm 1

// Queries and keys of unit norm, normal values, beta = sqrt(dim): a layer's inputs to the op at the start of training.
struct Inputs {
  Inputs(const Shape& shape, uint64_t seed);
  int64_t nbytes() const { return q.nbytes() + k.nbytes() + v.nbytes(); }

  Tensor q, k, v;
  std::vector<float> beta;
  Tensor weights;  // [batch, time, heads, 1], between 0 and 1; for cases with weights
};

// The outputs of a backward.
struct Gradients {
  explicit Gradients(const Shape& shape) : q(shape), k(shape), v(shape), beta(shape.heads), weights(per_row(shape)) {}

  kernels::OvqGradients of_ovq() {
    return {.d_q = q.view(), .d_k = k.view(), .d_v = v.view(), .d_beta = beta, .d_weights = weights.view()};
  }

  Tensor q, k, v;
  std::vector<float> beta;
  Tensor weights;
};

}  // namespace ovq::bench
