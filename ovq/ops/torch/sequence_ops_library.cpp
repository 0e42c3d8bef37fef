// TORCH_LIBRARY(ovq), continued: norms and rotary positions as functions of tensors.
#include <torch/library.h>

#include "ovq/ops/norm/torch.h"
#include "ovq/ops/rotary/torch.h"
#include "ovq/ops/torch/arguments.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using OptionalTensor = c10::optional<Tensor>;

Tensor rms_norm_op(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  check_arguments("rms_norm", {{"x", x}, {"weight", weight}});
  return rms_norm(x, weight, eps, groups);
}

Tensor l2_norm_op(const Tensor& x, double eps) {
  check_arguments("l2_norm", {{"x", x}});
  check(x.dim() >= 1, "l2_norm", "x has 0 dimensions; must have at least 1");
  return l2_norm(x, eps);
}

Tensor rotary_op(const Tensor& x, double base, int64_t first_position, const OptionalTensor& cu_seqlens) {
  check_arguments("rotary", {{"x", x}});
  check(base > 0, "rotary", "base is ", base, "; must be positive");
  return rotary(x, {.base = base, .first_position = first_position, .cu_seqlens = cu_seqlens});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps=1e-06, int groups=1) -> Tensor", rms_norm_op);
  library.def("l2_norm(Tensor x, float eps=1e-06) -> Tensor", l2_norm_op);
  library.def("rotary(Tensor x, float base=10000., int first_position=0, Tensor? cu_seqlens=None) -> Tensor",
              rotary_op);
}

}  // namespace ovq::ops
