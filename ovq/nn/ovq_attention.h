// OVQ-attention as a layer. Optional, each off by default: rotary positions in a window of two chunks, and weighted
// writes, which learn how much a token counts in the dictionary: w = sigmoid(w_gate(x)) for each kv head, at least
// 1e-6. With the value shift a weight moves with its key.
#pragma once

#include "ovq/nn/attention_heads.h"
#include "ovq/ops/ovq_attention/options.h"

namespace ovq::nn {

struct OvqAttentionOptions {
  HeadOptions heads;
  kernels::OvqOptions dictionary;
  bool weighted_writes = false;
};

template <class Fields>
void list_fields(Fields& field, OvqAttentionOptions& o) {
  list_fields(field, o.heads);
  list_fields(field, o.dictionary);
  field("weighted_writes", o.weighted_writes, "learn how much each token counts in the dictionary");
}

constexpr auto retired_fields(const OvqAttentionOptions&) {
  return std::to_array<RetiredField>({{.name = "trial", .value = "\"none\"", .had_effect = true}});
}

class OvqAttention : public AttentionHeads {
 public:
  explicit OvqAttention(const OvqAttentionOptions& options);

  const OvqAttentionOptions& options() const { return options_; }
  // Sets the maximum number of centroids per kv head from the next write on; no weight depends on it.
  void set_centroids(int64_t centroids);
  int64_t state_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const override;
  int64_t saved_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const override;

 protected:
  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

 private:
  kernels::OvqShape shape() const { return {1, heads().kv_heads, heads().head_dim, heads().head_dim}; }
  int64_t shifted_bytes(int64_t tokens) const;  // of what the layer keeps besides the dictionary
  Tensor write_weights(const Tensor& x);        // [B, T, Hkv]
  // The same one token later: before them is `before`, or at the start of a sequence its own first.
  Tensor shifted_weights(const Tensor& weights, const Tensor& before, const OptionalTensor& cu_seqlens) const;
  Tensor attend(const Inputs& in, const OptionalTensor& weights, MixerState* state, const OptionalTensor& cu_seqlens);

  OvqAttentionOptions options_;
  Projection w_gate{nullptr};
};

}  // namespace ovq::nn
