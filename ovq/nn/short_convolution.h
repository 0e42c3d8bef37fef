// ops::short_convolution as a layer, followed by an activation; a state carries the inputs before x.
#pragma once

#include "ovq/ops/short_convolution/torch.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::nn {

using OptionalTensor = c10::optional<at::Tensor>;

using ops::Activation;

struct ShortConvolutionOptions {
  int64_t channels = 0;
  int64_t width = 4;
  bool bias = false;
  Activation activation = Activation::none;
};

class ShortConvolutionImpl : public torch::nn::Module {
 public:
  explicit ShortConvolutionImpl(const ShortConvolutionOptions& options);

  // x [B, T, C] -> [B, T, C]
  at::Tensor forward(const at::Tensor& x, const OptionalTensor& cu_seqlens = {});

  // The same after the inputs `before` [B, width - 1, C] (undefined: start of the sequence), which are replaced by the
  // last inputs of x.
  at::Tensor forward(const at::Tensor& x, at::Tensor& before);

  const ShortConvolutionOptions& options() const { return options_; }

  at::Tensor weight;  // [C, width], uniform in +-width^(-1/2)
  at::Tensor bias;    // [C], zeros, or undefined

 private:
  at::Tensor convolved(const at::Tensor& x, const at::Tensor& before, const OptionalTensor& cu_seqlens) const;

  ShortConvolutionOptions options_;
};
TORCH_MODULE(ShortConvolution);

}  // namespace ovq::nn
