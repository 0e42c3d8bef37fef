// Matrix products for inference, with weights as they are stored: float32, or bfloat16 that is widened on the way and
// never trained. Several weights that share x are one product, without a copy of them. Few rows (decode) are multiplied
// by kernels::matvec, which reads every weight once; many (prefill) as in products.h, bfloat16 a block at a time.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// Float32 or bfloat16 on the CPU, all of them, and neither autocast nor a backend is in the way.
bool has_stored_kernels(at::TensorList weights);

// std::invalid_argument if a weight is bfloat16 and a gradient is asked for.
void check_inference(const char* op, const at::Tensor& x, at::TensorList weights);

// For these has_stored_kernels holds, and no gradient is needed. x [R, I] float32 with contiguous rows, weights [O, I]
// each; add [R, O of all], undefined: nothing -> x [W_1; W_2; ...]^T + add
at::Tensor rows_times_stored(const at::Tensor& x, at::TensorList weights, const at::Tensor& add = {});

// silu(x gate^T) * (x up^T) of few rows in one pass; undefined if they are many.
at::Tensor few_rows_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up);

// Whether so many rows are few.
bool few_rows(int64_t rows);

// The weight in x's dtype, for paths without kernels.
at::Tensor widened(const at::Tensor& weight, const at::Tensor& x);

}  // namespace ovq::ops
