// Causal depthwise convolution over time, as the linear layers put it on queries, keys and values:
//   y_t = act(bias + sum_j weight[:, j] x_{t - width + 1 + j}),  zeros (or carried inputs) before the start
// Cost: 2 T C width flops forward, twice that backward; reads and writes each element once.
#pragma once

#include "ovq/ops/torch.h"

namespace ovq::nn {

using OptionalTensor = c10::optional<at::Tensor>;

enum class Activation { none, silu };

struct ShortConvolutionInputs {
  at::Tensor x;               // [B, T, C]
  at::Tensor weight;          // [C, width]
  at::Tensor bias;            // [C], or undefined
  at::Tensor before;          // the width - 1 inputs before x, [B, width - 1, C]; undefined: zeros
  OptionalTensor cu_seqlens;  // sequences packed along time, each with zeros before it; not together with `before`
};

// -> [B, T, C]
at::Tensor short_convolution(const ShortConvolutionInputs& inputs);

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

  // The same after the inputs `before` [B, width - 1, C] (undefined: at the start), which become those after x.
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
