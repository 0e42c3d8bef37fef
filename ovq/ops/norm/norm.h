// Norms of rows:
//   rms_norm  y = x r w,  r = (mean(x^2) + eps)^(-1/2), the mean over a row or over each of `groups` equal parts of it
//   l2_norm   y = x r,    r = (sum(x^2) + eps)^(-1/2)
// Gradients, exact with the eps: with g = dy w, dx = r (g - x r^2 mean(g x)) and dw = sum dy x r; for l2_norm
// dx = r (dy - y (y . dy)). Bound by memory: forward reads and writes a row once, backward reads two and writes one.
#pragma once

#include <cstdint>
#include <span>

namespace ovq::kernels {

struct RmsNormInputs {
  std::span<const float> x;       // [rows, width]
  std::span<const float> weight;  // [width]
  int64_t groups = 1;             // divides the width
  float eps = 0;
};

struct RmsNormGradients {
  std::span<float> d_x;          // [rows, width], as all others overwritten
  std::span<float> d_weight;     // [rms_norm_sums(rows), width], whose sum over rows is the gradient
  std::span<const float> add{};  // [rows, width], added to d_x; empty: nothing
};

// Partial sums of a weight's gradient. They depend on the number of rows only, so that threads do not change the bits.
int64_t rms_norm_sums(int64_t rows);

// y [rows, width], r [rows, groups]. Each function here throws std::invalid_argument naming the argument that is wrong.
void rms_norm_forward(const RmsNormInputs& inputs, std::span<float> y, std::span<float> r);
void rms_norm_backward(const RmsNormInputs& inputs, std::span<const float> d_y, std::span<const float> r,
                       const RmsNormGradients& gradients);

// x, y [rows, width], r [rows]
void l2_norm_forward(std::span<const float> x, int64_t width, float eps, std::span<float> y, std::span<float> r);
void l2_norm_backward(std::span<const float> d_y, std::span<const float> y, std::span<const float> r, int64_t width,
                      std::span<float> d_x);

}  // namespace ovq::kernels
