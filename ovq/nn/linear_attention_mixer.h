// Plain linear attention, the simplest layer with a state of fixed size:
//   q, k, v = silu(conv(W x)), q and k of norm one per head;  y = W_o RMSNorm(linear_attention(q, k, v))
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/recurrent_mixer.h"

namespace ovq::nn {

struct LinearAttentionMixerOptions {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t key_dim = 128;    // per head
  int64_t value_dim = 128;  // per head
  int64_t conv_width = 4;
};

template <class Fields>
void list_fields(Fields& field, LinearAttentionMixerOptions& o) {
  field("heads", o.heads, "heads, each with a state of its own", at_least(1));
  field("key_dim", o.key_dim, "numbers per head of queries and keys", at_least(1));
  field("value_dim", o.value_dim, "numbers per head of values", at_least(1));
  field("conv_width", o.conv_width, "taps of the short convolutions", at_least(1));
}

constexpr auto retired_fields(const LinearAttentionMixerOptions&) {
  return std::to_array<RetiredField>({{.name = "chunk", .value = "64"}});
}

class LinearAttentionMixer : public RecurrentMixer {
 public:
  explicit LinearAttentionMixer(const LinearAttentionMixerOptions& options);

  const LinearAttentionMixerOptions& options() const { return options_; }

 protected:
  Recurred recur(const RecurInputs& in) override;

 private:
  LinearAttentionMixerOptions options_;
};

}  // namespace ovq::nn
