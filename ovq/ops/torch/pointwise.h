// Functions of torch, of halves on the CPU too, which not every version of torch computes with: in float32.
#pragma once

#include <ATen/ATen.h>

namespace ovq::ops {

template <class Function>
at::Tensor through_float(const at::Tensor& x, Function&& function) {
  const bool half = x.is_cpu() && x.scalar_type() == at::kHalf;
  return half ? function(x.to(at::kFloat)).to(at::kHalf) : function(x);
}

inline at::Tensor silu(const at::Tensor& x) {
  return through_float(x, [](const at::Tensor& y) { return at::silu(y); });
}
inline at::Tensor sigmoid(const at::Tensor& x) {
  return through_float(x, [](const at::Tensor& y) { return at::sigmoid(y); });
}
inline at::Tensor log_sigmoid(const at::Tensor& x) {
  return through_float(x, [](const at::Tensor& y) { return at::log_sigmoid(y); });
}
inline at::Tensor softplus(const at::Tensor& x) {
  return through_float(x, [](const at::Tensor& y) { return at::softplus(y); });
}
inline at::Tensor exp(const at::Tensor& x) {
  return through_float(x, [](const at::Tensor& y) { return at::exp(y); });
}

}  // namespace ovq::ops
