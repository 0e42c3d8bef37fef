// When the fused loops over rows (ovq/ops/rows/kernel.h) run, and the norms among them.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>

namespace ovq::ops {

// Float32 on the CPU, all of them (undefined ones do not count), and neither autocast nor a backend is in the way.
bool has_row_kernels(at::TensorList tensors);

struct NormedRows {
  at::Tensor y;  // as x
  at::Tensor r;  // [rows]
};
// x [..., C] contiguous
NormedRows norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps);

struct NormGradients {
  at::Tensor d_x, d_weight;
};
// `add`, if defined, as x: added to d_x.
NormGradients norm_rows_backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& r, const at::Tensor& add);

}  // namespace ovq::ops
