// OVQ-attention as a torch op with autograd, by the kernels of ovq_attention.h.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "ovq/ops/ovq_attention/options.h"
#include "ovq/ops/ovq_attention/torch_state.h"

namespace ovq::ops {

using StatePtr = c10::intrusive_ptr<State>;

// q [B, T, Hq, dk], k [B, T, Hkv, dk], v [B, T, Hkv, dv], beta [Hq] or a scalar -> o [B, T, Hq, dv] in q's dtype.
// `weights` [B, T, Hkv], positive and finite: how much each token weighs. A state is continued with weights if and only
// if it was made with them; options.weighted follows from whether they are given.
at::Tensor ovq_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                         const kernels::OvqOptions& options, const c10::optional<at::Tensor>& cu_seqlens = {},
                         const c10::optional<at::Tensor>& weights = {});

// The same, continuing `states` (one for the batch, one per packed sequence; none: from the start) and returning the
// states after it. Differentiable through both. The given states are left unchanged. States that the call makes are
// stored as `state_dtype`, those that it is given as they are; bfloat16 is for inference and has no gradients.
struct OvqResult {
  at::Tensor o;
  std::vector<StatePtr> states;
};
OvqResult ovq_attention_with_state(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const at::Tensor& beta, const kernels::OvqOptions& options,
                                   const c10::optional<at::Tensor>& cu_seqlens, const std::vector<StatePtr>& states,
                                   const c10::optional<at::Tensor>& weights = {},
                                   kernels::StateDtype state_dtype = kernels::StateDtype::float32);

// The options that these states go on with, the defaults if there are none. std::invalid_argument if they differ in
// `centroids`, of which a call has one; what else must not differ, the call says.
kernels::OvqOptions options_of(const char* op, const std::vector<StatePtr>& states);

// Decode: the states move on in place; no autograd. Errors call it `step`, as Python does.
at::Tensor ovq_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                    const std::vector<StatePtr>& states, const c10::optional<at::Tensor>& cu_seqlens = {},
                    const c10::optional<at::Tensor>& weights = {});

}  // namespace ovq::ops
