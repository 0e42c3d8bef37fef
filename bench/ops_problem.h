// A problem for the torch ops and the two ways to compute it.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "bench/flops.h"
#include "bench/tensor.h"
#include "ovq/ops/ovq_attention/options.h"
#include "ovq/ops/torch/backend.h"

namespace ovq::bench {

using ops::Backend;

struct OpsProblem {
  OpsProblem(const Shape& shape, uint64_t seed);
  std::vector<at::Tensor> leaves(at::ScalarType dtype) const;  // copies of q, k, v and beta

  Inputs memory;
  Tensor d_o_memory;
  std::vector<at::Tensor> inputs;  // q, k, v [1, T, H, D], beta [H]; they require gradients
  at::Tensor d_o;
};

// OVQ-attention with options, or causal attention with a window (0: none).
struct OpsCall {
  bool ovq = true;
  kernels::OvqOptions options;
  int64_t window = 0;

  // `assignments`, if defined, replaces those of the plain path.
  at::Tensor operator()(Backend backend, const std::vector<at::Tensor>& x, const at::Tensor& assignments = {}) const;
  at::Tensor assignments(const std::vector<at::Tensor>& x) const;  // of the fused path; undefined for attention
};

// Checks output and gradients of both paths by ovq/base/calibration.h; the truth is the plain path in double. Throws
// Mismatch.
void check_paths_agree(const OpsCall& call, const Shape& shape);

}  // namespace ovq::bench
