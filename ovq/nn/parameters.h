// Initial values of the layers' parameters, and checks of their options.
#pragma once

#include <cmath>

#include "ovq/base/error.h"
#include "ovq/nn/projection.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::nn {

// Weights N(0, 0.02), a bias of zeros.
inline Projection make_projection(int64_t from, int64_t to, bool bias = false) {
  Projection linear(torch::nn::LinearOptions(from, to).bias(bias));
  const torch::NoGradGuard no_grad;
  linear->weight.normal_(0, 0.02);
  if (bias) linear->bias.zero_();
  return linear;
}

// The inverse of softplus of steps that are log-uniform in [1e-3, 1e-1].
inline at::Tensor initial_dt_bias(int64_t heads) {
  const at::Tensor dt = at::empty({heads}).uniform_(std::log(1e-3), std::log(1e-1)).exp_().clamp_min_(1e-4);
  return dt + (-(-dt).expm1()).log();
}

// log A, A uniform in [low, high]
inline at::Tensor initial_a_log(int64_t heads, double low, double high) {
  return at::empty({heads}).uniform_(low, high).clamp_min_(1e-4).log_();
}

inline void check_width(const char* op, const at::Tensor& x, int64_t width) {
  check(x.size(2) == width, op, "x has width ", x.size(2), "; must have ", width);
}

// Throws an error that names the option unless it is at least 1.
inline void check_positive(const char* op, const char* name, int64_t value) {
  check(value >= 1, op, name, " is ", value, "; must be at least 1");
}

}  // namespace ovq::nn
