// Normalisation over the last dimension, as tensor functions: ovq/ops/norm/norm.h has the formulas. float32, bfloat16
// and half on the CPU; computed in float32. Backward keeps x (or y) and r.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// x [..., C], weight [C] -> [..., C]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps = 1e-6, int64_t groups = 1);

// x [..., C] -> [..., C], rows of norm one
at::Tensor l2_norm(const at::Tensor& x, double eps = 1e-6);

// Of float32 and contiguous tensors, outside of autograd, for ops that contain a norm. x [..., C]
struct NormedRows {
  at::Tensor y;  // as x
  at::Tensor r;  // [rows, groups]
};
NormedRows norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t groups = 1);

struct NormGradients {
  at::Tensor d_x, d_weight;
};
// `add`, if defined, as x: added to d_x.
NormGradients norm_rows_backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& r, const at::Tensor& add = {});

}  // namespace ovq::ops
