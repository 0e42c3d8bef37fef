#include "ovq/nn/rms_norm.h"

#include "ovq/base/error.h"
#include "ovq/ops/norm/torch.h"

namespace ovq::nn {

using at::Tensor;

RMSNormImpl::RMSNormImpl(int64_t size, double eps, int64_t groups)
    : weight(register_parameter("weight", at::ones({size}))), eps_(eps), groups_(groups) {
  check(size >= 1, "rms_norm", "size is ", size, "; must be at least 1");
  check(groups >= 1 && size % groups == 0, "rms_norm", "groups is ", groups, "; must divide the size, ", size);
}

Tensor RMSNormImpl::forward(const Tensor& x) { return ops::rms_norm(x, weight, eps_, groups_); }

}  // namespace ovq::nn
