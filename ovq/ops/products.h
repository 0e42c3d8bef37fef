// Matrix products of layers: many rows with a matrix that fits into a cache. There the kernels are faster than a
// library's product, which is made for large matrices: 145-160 against 115 GFLOP/s for 8,092 rows, 64-128 inputs and
// 64-384 outputs on one core with AVX-512. Other sizes, few rows and other instruction sets are for the library.
#pragma once

#include "ovq/ops/torch.h"

namespace ovq::ops {

// Float32 on the CPU. x [R, I] and y [R, O] have contiguous rows.
at::Tensor rows_times_transposed(const at::Tensor& x, const at::Tensor& w, const at::Tensor& add = {});  // x w^T + add
at::Tensor rows_times(const at::Tensor& y, const at::Tensor& w);          // y w, w [O, I]
at::Tensor columns_times_rows(const at::Tensor& y, const at::Tensor& x);  // y^T x [O, I]

// x w^T as an op: x [..., I], w [O, I] -> [..., O]
at::Tensor linear(const at::Tensor& x, const at::Tensor& w);

}  // namespace ovq::ops
