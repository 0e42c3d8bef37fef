// Normalisation over the last dimension.
//   rms_norm(x) = x r w,  r = (mean(x^2) + eps)^(-1/2), the mean over all channels or over each of `groups` equal parts
//   l2_norm(x)      = x r,    r = (sum(x^2) + eps)^(-1/2)
// Backward keeps x (or y) and r: with y = x r and g = dy w, dx = r (g - y mean(g y)), dw = sum dy y; for l2_norm
// dx = r (dy - y (y . dy)). Both are exact with the eps.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// x [..., C], weight [C] -> [..., C]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps = 1e-6, int64_t groups = 1);

// x [..., C] -> [..., C], rows of norm one
at::Tensor l2_norm(const at::Tensor& x, double eps = 1e-6);

}  // namespace ovq::ops
