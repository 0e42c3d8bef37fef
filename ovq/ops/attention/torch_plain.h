// Attention and OVQ-attention composed of ATen calls: any device, any floating dtype, ordinary autograd. The readable
// twin of the paper's pseudo-code, the second reference in tests, and what runs where there is no fused kernel.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "ovq/ops/ovq_attention/options.h"

namespace ovq::ops {

// q [B, Tq, Hq, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], beta [Hq] -> o [B, Tq, Hq, dv]; see kernels/attention.h
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                           int64_t window, int64_t query_offset);

// A state as tensors.
struct PlainState {
  kernels::OvqOptions options;
  int64_t position = 0;
  at::Tensor keys, values;                  // [B, Hkv, n, dk], [B, Hkv, n, dv]
  at::Tensor counts;                        // [B, Hkv, n] int64; with weights of the keys' dtype, and differentiable
  at::Tensor pending_keys, pending_values;  // [B, Hkv, pending, dk], [B, Hkv, pending, dv]
  at::Tensor pending_weights;               // [B, Hkv, pending] with weights
  at::Tensor shrinkage;                     // [B, Hkv, n] with value_norms

  static PlainState empty(const at::Tensor& k, const at::Tensor& v, const kernels::OvqOptions& options);
};

// o [B, T, Hq, dv] and the state after it. `weights` [B, T, Hkv] are given if state.options.weighted. `forced`, if
// defined, holds assignments [B, pending + T, Hkv] as kernels/ovq_attention.h encodes them.
struct PlainResult {
  at::Tensor o;
  PlainState state;
};
PlainResult plain_ovq_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                                const PlainState& state, const at::Tensor& weights = {}, const at::Tensor& forced = {});

}  // namespace ovq::ops
