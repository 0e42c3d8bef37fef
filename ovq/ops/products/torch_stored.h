// Matrix products for inference, with weights as they are stored: float32, or bfloat16 that is widened on the way and
// never trained. Several weights that share x are one product, without a copy of them. Few rows (decode) are multiplied
// by kernels::matvec, which reads every weight once; many (prefill) as in torch.h, bfloat16 a block at a time.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

// std::invalid_argument if a weight is bfloat16 and a gradient is asked for.
void check_inference(const char* op, const at::Tensor& x, at::TensorList weights);

// A weight [O, I] as the products below take it: float32 or bfloat16. std::invalid_argument if there are no kernels.
at::Tensor stored_weight(const char* op, const at::Tensor& weight);
// The same with gradients: float32.
at::Tensor trained_weight(const char* op, const at::Tensor& weight);

// Outside of autograd. x [R, I] float32 with contiguous rows, weights [O, I] each, as stored_weight makes them; add
// [R, O of all], undefined: nothing -> x [W_1; W_2; ...]^T + add
at::Tensor rows_times_stored(const at::Tensor& x, at::TensorList weights, const at::Tensor& add = {});

// silu(x gate^T) * (x up^T) of few rows in one pass; undefined if they are many.
at::Tensor few_rows_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up);

}  // namespace ovq::ops
