// MesaNet (arXiv 2506.05233):
//   q, k = silu(conv(W x)) of norm one per head;  v = W_v x;  beta = sigmoid(W_b x + b)
//   g = logsigmoid(W_a x + b);  y = W_o RMSNorm(mesa(q, k, v, g, beta, softplus(lambda) + 0.25))
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/recurrent_mixer.h"

namespace ovq::nn {

struct MesaNetOptions {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t key_dim = 128;    // per head
  int64_t value_dim = 128;  // per head
  int64_t conv_width = 4;
  int64_t iterations = 30;  // of conjugate gradients
};

template <class Fields>
void list_fields(Fields& field, MesaNetOptions& o) {
  field("heads", o.heads, "heads, each with a state of its own", at_least(1));
  field("key_dim", o.key_dim, "numbers per head of queries and keys", at_least(1));
  field("value_dim", o.value_dim, "numbers per head of values", at_least(1));
  field("conv_width", o.conv_width, "taps of the short convolutions", at_least(1));
  field("iterations", o.iterations, "iterations of conjugate gradients", at_least(1));
}

constexpr auto retired_fields(const MesaNetOptions&) {
  return std::to_array<RetiredField>({{.name = "chunk", .value = "64"}});
}

class MesaNet : public RecurrentMixer {
 public:
  explicit MesaNet(const MesaNetOptions& options);

  const MesaNetOptions& options() const { return options_; }

 protected:
  int64_t state_elements() const override;
  Recurred recur(const RecurInputs& in) override;

 private:
  MesaNetOptions options_;
  Projection a_proj_{nullptr}, b_proj_{nullptr};
  Tensor lambda_;  // [heads, key_dim]
};

}  // namespace ovq::nn
