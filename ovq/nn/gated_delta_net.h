// Gated DeltaNet (arXiv 2412.06464):
//   q, k, v = silu(conv(W x)), q and k of norm one per head;  beta = sigmoid(W_b x)
//   g = -exp(A_log) softplus(W_a x + dt_bias);  y = W_o (RMSNorm(gated_delta(q, k, v, g, beta)) . silu(W_g x))
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/mixer.h"
#include "ovq/nn/projection.h"
#include "ovq/nn/rms_norm.h"
#include "ovq/nn/short_convolution.h"

namespace ovq::nn {

struct GatedDeltaNetOptions {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t key_dim = 128;    // per head
  int64_t value_dim = 256;  // per head
  int64_t conv_width = 4;
  int64_t chunk = 64;
};

template <class Fields>
void list_fields(Fields& field, GatedDeltaNetOptions& o) {
  field("heads", o.heads, "heads, each with a state of its own", at_least(1));
  field("key_dim", o.key_dim, "numbers per head of queries and keys", at_least(1));
  field("value_dim", o.value_dim, "numbers per head of values", at_least(1));
  field("conv_width", o.conv_width, "taps of the short convolutions", at_least(1));
  field("chunk", o.chunk, "tokens computed at a time; a matter of speed only", at_least(1));
}

class GatedDeltaNet : public Mixer {
 public:
  explicit GatedDeltaNet(const GatedDeltaNetOptions& options);

  int64_t state_bytes(int64_t tokens) const override;
  const GatedDeltaNetOptions& options() const { return options_; }

 protected:
  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

 private:
  GatedDeltaNetOptions options_;
  Projection q_proj_, k_proj_, v_proj_, g_proj_, a_proj_, b_proj_, o_proj_;
  ShortConvolution conv_q_, conv_k_, conv_v_;
  Tensor A_log_, dt_bias_;  // [heads]
  RMSNorm norm_;
};

}  // namespace ovq::nn
