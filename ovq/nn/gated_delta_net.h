// Gated DeltaNet (arXiv 2412.06464):
//   q, k, v = silu(conv(W x)), q and k of norm one per head;  beta = sigmoid(W_b x)
//   g = -exp(A_log) softplus(W_a x + dt_bias);  y = W_o (RMSNorm(gated_delta_rule(q, k, v, g, beta)) . silu(W_g x))
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/recurrent_mixer.h"

namespace ovq::nn {

struct GatedDeltaNetOptions {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t key_dim = 128;    // per head
  int64_t value_dim = 256;  // per head
  int64_t conv_width = 4;
};

template <class Fields>
void list_fields(Fields& field, GatedDeltaNetOptions& o) {
  field("heads", o.heads, "heads, each with a state of its own", at_least(1));
  field("key_dim", o.key_dim, "numbers per head of queries and keys", at_least(1));
  field("value_dim", o.value_dim, "numbers per head of values", at_least(1));
  field("conv_width", o.conv_width, "taps of the short convolutions", at_least(1));
}

constexpr auto retired_fields(const GatedDeltaNetOptions&) {
  return std::to_array<RetiredField>({{.name = "chunk", .value = "64"}});
}

class GatedDeltaNet : public RecurrentMixer {
 public:
  explicit GatedDeltaNet(const GatedDeltaNetOptions& options);

  const GatedDeltaNetOptions& options() const { return options_; }

 protected:
  Recurred recur(const RecurInputs& in) override;

 private:
  GatedDeltaNetOptions options_;
  Projection g_proj_{nullptr}, a_proj_{nullptr}, b_proj_{nullptr};
  Tensor A_log_, dt_bias_;  // [heads]
};

}  // namespace ovq::nn
