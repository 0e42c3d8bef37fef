// Tensors as the kernels' views: through strides, without a copy while the last dimension is contiguous.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "ovq/core/bfloat16.h"
#include "ovq/core/view.h"

namespace ovq::ops {

inline at::Tensor with_contiguous_rows(const at::Tensor& x) {
  return x.sym_size(-1) <= 1 || x.sym_stride(-1) == 1 ? x : x.contiguous();
}

// [B, T, H, D] float tensor with contiguous rows
inline kernels::View<float> view_of(const at::Tensor& x) {
  return {x.data_ptr<float>(), x.size(0), x.size(1), x.size(2), x.size(3), x.stride(0), x.stride(1), x.stride(2)};
}

// The same of a bfloat16 tensor
inline kernels::View<const kernels::Bfloat16> narrow_view_of(const at::Tensor& x) {
  const auto* data = reinterpret_cast<const kernels::Bfloat16*>(x.data_ptr<at::BFloat16>());
  return {data, x.size(0), x.size(1), x.size(2), x.size(3), x.stride(0), x.stride(1), x.stride(2)};
}

inline std::span<float> span_of(const at::Tensor& x) { return {x.data_ptr<float>(), static_cast<size_t>(x.numel())}; }

// [B, H, n, D] as the [B, n, H, D] the kernels take
inline kernels::View<float> state_view_of(const at::Tensor& x) { return view_of(x.transpose(1, 2)); }
inline kernels::View<float> optional_state_view_of(const at::Tensor& x) {
  return x.defined() ? state_view_of(x) : kernels::View<float>();
}

}  // namespace ovq::ops
