// A call of the kernels with tensors: what the functions of torch.h have in common.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {

inline constexpr const char* kOvqAttention = "ovq_attention";

struct OvqCall {
  Inputs in;
  kernels::OvqOptions options;
  std::vector<int64_t> cu_seqlens;  // empty: not packed
  kernels::OvqPlan plan;

  kernels::OvqInputs inputs() const;
  int64_t states() const { return cu_seqlens.empty() ? 1 : static_cast<int64_t>(cu_seqlens.size()) - 1; }
  kernels::OvqShape state_shape() const;
};

// Weights and counts [B, T, H] as [B, T, H, 1]
inline kernels::View<float> weight_view_of(const at::Tensor& weights) { return view_of(weights.unsqueeze(-1)); }

// What the kernels' plan has to know of the states that a call continues.
std::vector<kernels::OvqStateInfo> info_of(const std::vector<StatePtr>& states);

struct OvqForward {
  at::Tensor o;                 // [B, T, Hq, dv]
  at::Tensor lse, assignments;  // what backward needs; undefined unless kept
};

// Runs the plan; `states` move on in place.
OvqForward run_forward(const OvqCall& call, bool keep, std::span<kernels::OvqState> states);

struct OvqGradients {
  at::Tensor d_q, d_k, d_v, d_beta;
  at::Tensor d_weights;  // undefined without weights
};

// What states add to backward: see kernels::OvqSaved, OvqOutputGradients and OvqGradients.
struct OvqStatesOfBackward {
  std::span<const kernels::OvqState> initial;
  std::span<const kernels::OvqStateGradients<const float>> d_final;
  std::span<const kernels::OvqStateGradients<float>> d_initial;
};

OvqGradients run_backward(const OvqCall& call, const OvqForward& forward, const at::Tensor& d_o,
                          const OvqStatesOfBackward& states);

}  // namespace ovq::ops
