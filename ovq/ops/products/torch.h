// Matrix products of layers: by the kernels where they are faster (ovq/ops/products/products.h says where), else by
// torch's library.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// Float32 on the CPU. x [R, I] and y [R, O] have contiguous rows.
at::Tensor rows_times_transposed(const at::Tensor& x, const at::Tensor& w, const at::Tensor& add = {});  // x w^T + add
void rows_times_transposed_into(const at::Tensor& x, const at::Tensor& w, const at::Tensor& add, at::Tensor y);
at::Tensor rows_times(const at::Tensor& y, const at::Tensor& w);          // y w, w [O, I]
at::Tensor columns_times_rows(const at::Tensor& y, const at::Tensor& x);  // y^T x [O, I]

// x w^T + bias as an op: x [..., I], w [O, I], bias [O] or undefined -> [..., O]. float32, bfloat16 and half on the
// CPU, computed in float32. Without gradients w may be bfloat16 where x is float32, and few rows are multiplied by
// kernels::matvec; see torch_stored.h.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});

}  // namespace ovq::ops
