// What the ops have in common: checks that need tensors, dtypes, packed offsets, threads, and which path runs.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "ovq/core/view.h"
#include "ovq/ops/torch/backend.h"

namespace ovq::ops {

enum class Path {
  fused,  // kernels, float32 inside
  plain,  // ATen calls
  meta,   // shapes only
};

struct Inputs {
  at::Tensor q, k, v, beta;         // of one dtype, float32 on the fused path; rows contiguous there
  at::Tensor weights;               // [B, T, Hkv] of the same; undefined: none
  std::vector<int64_t> cu_seqlens;  // empty: not packed, or traced and fused
  at::ScalarType dtype;             // of the output
  Path path;
};

// What only tensors know is checked here: devices, dtypes, dimensions. Sizes and values are for the kernels' plan,
// which both paths make of the views below. Throws std::invalid_argument (ValueError) or c10::TypeError naming the
// argument.
Inputs make_inputs(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& beta, const c10::optional<at::Tensor>& cu_seqlens,
                   const c10::optional<at::Tensor>& weights = {}, Backend backend = Backend::automatic);

// A view for the kernels' plan: of the data on the fused path, of the sizes alone elsewhere.
kernels::View<const float> plan_view(const Inputs& inputs, const at::Tensor& x);
// beta's values on the CPU, for the plan.
at::Tensor plan_beta(const Inputs& inputs);

// Throws std::invalid_argument unless there are kernels for x: float32, bfloat16 or half (both converted) on the CPU.
void check_has_kernels(const char* op, const char* name, const at::Tensor& x);

// The kernels use as many threads as torch does.
void use_torch_threads();

}  // namespace ovq::ops
