#include "ovq/nn/short_convolution.h"

#include <cmath>

#include "ovq/base/error.h"

namespace ovq::nn {
namespace {

using at::Tensor;

constexpr const char* kShortConvolution = "short_convolution";

}  // namespace

ShortConvolutionImpl::ShortConvolutionImpl(const ShortConvolutionOptions& options) : options_(options) {
  check(options.channels >= 1, kShortConvolution, "channels is ", options.channels, "; must be at least 1");
  check(options.width >= 1, kShortConvolution, "width is ", options.width, "; must be at least 1");
  const double bound = 1 / std::sqrt(static_cast<double>(options.width));
  weight = register_parameter("weight", at::empty({options.channels, options.width}).uniform_(-bound, bound));
  if (options.bias) bias = register_parameter("bias", at::zeros({options.channels}));
}

Tensor ShortConvolutionImpl::convolved(const Tensor& x, const Tensor& before, const OptionalTensor& cu_seqlens) const {
  return ops::short_convolution({.x = x,
                                 .weight = weight,
                                 .bias = bias,
                                 .before = before,
                                 .cu_seqlens = cu_seqlens,
                                 .activation = options_.activation});
}

Tensor ShortConvolutionImpl::forward(const Tensor& x, const OptionalTensor& cu_seqlens) {
  return convolved(x, {}, cu_seqlens);
}

Tensor ShortConvolutionImpl::forward(const Tensor& x, Tensor& before) {
  if (before.defined()) before = before.to(x.scalar_type());  // autocast may have begun or ended since
  const Tensor y = convolved(x, before, {});
  before = ops::inputs_after(x, before, options_.width);
  return y;
}

}  // namespace ovq::nn
