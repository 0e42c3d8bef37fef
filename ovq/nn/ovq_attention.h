// OVQ-attention as a layer; optionally with rotary positions in a window of two chunks.
#pragma once

#include "ovq/kernels/ovq_options.h"
#include "ovq/nn/attention_heads.h"

namespace ovq::nn {

struct OvqAttentionOptions {
  HeadOptions heads;
  kernels::OvqOptions dictionary;
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
  Tensor attend(const Inputs& in, MixerState* state, const OptionalTensor& cu_seqlens);

  OvqAttentionOptions options_;
};

}  // namespace ovq::nn
