// Causal self-attention as a layer: o_t = softmax(beta q_t K^T) V, optionally with rotary positions and a window.
// Its state is the cache of keys and values: all of them, or those the window reaches.
#pragma once

#include "ovq/nn/attention_heads.h"

namespace ovq::nn {

struct AttentionOptions {
  HeadOptions heads;
  int64_t window = 0;  // a query sees this many keys, its own included; 0: all before it
  bool rope = false;
  double rope_base = 10000.0;
};

class Attention : public AttentionHeads {
 public:
  explicit Attention(const AttentionOptions& options);

  const AttentionOptions& options() const { return options_; }
  int64_t state_bytes(int64_t tokens) const override;

 protected:
  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

 private:
  AttentionOptions options_;
};

}  // namespace ovq::nn
