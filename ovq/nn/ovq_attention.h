// OVQ-attention as a layer. Optional, each off by default: rotary positions in a window of two chunks, the value shift
// (the pair inserted at t is (k_{t-1}, s v_{t-1} + (1 - s) v_t), s = sigmoid(alpha)), a short convolution on queries
// and keys before their norm, and weighted writes: how much a token counts in the dictionary is learned,
// w = sigmoid(w_gate(x)) for each kv head, at least 1e-6. With the value shift a weight goes where its key goes.
#pragma once

#include "ovq/kernels/ovq_options.h"
#include "ovq/nn/attention_heads.h"
#include "ovq/nn/short_convolution.h"

namespace ovq::nn {

struct OvqAttentionOptions {
  HeadOptions heads;
  kernels::OvqOptions dictionary;
  bool value_shift = false;
  bool convolution = false;
  bool weighted_writes = false;
};

class OvqAttention : public AttentionHeads {
 public:
  explicit OvqAttention(const OvqAttentionOptions& options);

  const OvqAttentionOptions& options() const { return options_; }
  // The most centroids per kv head, from the next write on; no weight depends on it.
  void set_centroids(int64_t centroids);
  int64_t state_bytes(int64_t tokens) const override;

 protected:
  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

 private:
  void convolve(Projected& projected, MixerState* state, const OptionalTensor& cu_seqlens);
  void shift_values(Projected& projected, MixerState* state, const OptionalTensor& cu_seqlens);
  OptionalTensor write_weights(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens);
  Tensor attend(const Projected& projected, const OptionalTensor& weights, MixerState* state,
                const OptionalTensor& cu_seqlens);

  OvqAttentionOptions options_;
  ShortConvolution conv_q{nullptr}, conv_k{nullptr};
  Tensor alpha;  // []
  torch::nn::Linear w_gate{nullptr};
};

}  // namespace ovq::nn
