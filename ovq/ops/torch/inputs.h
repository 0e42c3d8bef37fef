// What attention and ovq_attention have in common: checks that need tensors, dtypes, threads.
#pragma once

#include <ATen/ATen.h>

namespace ovq::ops {

struct Inputs {
  at::Tensor q, k, v, beta;           // float32; rows contiguous
  at::Tensor weights;                 // [B, T, Hkv], float32; undefined: none
  at::ScalarType dtype = at::kFloat;  // of the output
};

// What only tensors know is checked here: devices, dtypes, dimensions. Sizes and values are for the kernels' plan.
// Throws std::invalid_argument (ValueError) or c10::TypeError naming the argument.
Inputs make_inputs(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& beta, const c10::optional<at::Tensor>& weights = {});

// Throws std::invalid_argument unless there are kernels for x: float32, bfloat16 or half (both converted) on the CPU.
void check_has_kernels(const char* op, const char* name, const at::Tensor& x);

// The kernels use as many threads as torch does.
void use_torch_threads();

}  // namespace ovq::ops
