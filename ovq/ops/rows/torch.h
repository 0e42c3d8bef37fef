// What the ops on rows do with their tensors before the kernels see them.
#pragma once

#include <algorithm>

#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {

// x in float32, which the kernels take: x itself if it is so already. An undefined one stays undefined.
// std::invalid_argument if there are no kernels for it.
inline at::Tensor as_float(const char* op, const char* name, const at::Tensor& x) {
  if (!x.defined() || (x.scalar_type() == at::kFloat && x.is_cpu())) return x;
  check_has_kernels(op, name, x);
  return x.to(at::kFloat);
}

// The same, contiguous.
inline at::Tensor float_rows(const char* op, const char* name, const at::Tensor& x) {
  return x.defined() ? as_float(op, name, x).contiguous() : x;
}

// The number of x's rows [..., C].
inline int64_t rows_of(const at::Tensor& x) { return x.numel() / std::max<int64_t>(1, x.size(-1)); }

}  // namespace ovq::ops
