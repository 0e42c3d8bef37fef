// Causal self-attention as a layer: o_t = softmax(beta q_t K^T) V, optionally with rotary positions and a window. Its
// state is the cache of all keys and values, or of those in the window.
#pragma once

#include "ovq/nn/attention_heads.h"

namespace ovq::nn {

struct AttentionOptions {
  HeadOptions heads;
  int64_t window = 0;
  bool rope = false;
  double rope_base = 10000.0;
};

template <class Fields>
void list_fields(Fields& field, AttentionOptions& o) {
  list_fields(field, o.heads);
  field("window", o.window, "keys a query sees, its own included", or_zero(at_least(1), "none"));
  field("rope", o.rope, "rotary positions; the head dim must be even");
  field("rope_base", o.rope_base, "base of the rotary positions", above(0));
}

class Attention : public AttentionHeads {
 public:
  explicit Attention(const AttentionOptions& options);

  const AttentionOptions& options() const { return options_; }
  int64_t state_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const override;
  int64_t saved_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const override;

 protected:
  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

 private:
  int64_t cache_bytes(int64_t rows, kernels::StateDtype dtype) const;

  AttentionOptions options_;
};

}  // namespace ovq::nn
