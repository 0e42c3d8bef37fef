// Matrix products of layers: many rows with a matrix that fits into a cache. With 8,092 rows on one core with AVX-512
// (peak 175 GFLOP/s) the kernels reached, over 9 shapes from 64 x 64 to 768 x 128, 140-161 GFLOP/s in x w^T where
// OpenBLAS had 97-140, and was never faster. In y^T x they are faster with at most 64 rows or columns of the result
// (102-135 against 88-120) and slower with more (89 against 128 for 768 x 128): those, other sizes, few rows and other
// instruction sets are for the library.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// Float32 on the CPU. x [R, I] and y [R, O] have contiguous rows.
at::Tensor rows_times_transposed(const at::Tensor& x, const at::Tensor& w, const at::Tensor& add = {});  // x w^T + add
void rows_times_transposed_into(const at::Tensor& x, const at::Tensor& w, const at::Tensor& add, at::Tensor y);
at::Tensor rows_times(const at::Tensor& y, const at::Tensor& w);          // y w, w [O, I]
at::Tensor columns_times_rows(const at::Tensor& y, const at::Tensor& x);  // y^T x [O, I]

// x w^T + bias as an op: x [..., I], w [O, I], bias [O] or undefined -> [..., O]. Without gradients w may be bfloat16,
// and few rows are multiplied by kernels::matvec; see stored_weights.h.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});

// The same as torch has it; halves on the CPU, which not every version of torch computes with, in float32.
at::Tensor composed_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});

}  // namespace ovq::ops
