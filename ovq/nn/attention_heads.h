// Common part of the attention layers: projections without bias, unit-norm queries and keys, and beta = b sqrt(dk) with
// b learned per head. Optional, each off by default: a short convolution on queries and keys before their norm, and the
// value shift, which inserts the pair (k_{t-1}, s v_{t-1} + (1 - s) v_t) at t, with s = sigmoid(alpha); at the start of
// a sequence it is (k_0, v_0).
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/mixer.h"
#include "ovq/nn/projection.h"
#include "ovq/nn/short_convolution.h"
#include "ovq/ops/projections/torch.h"
#include "ovq/ops/rotary/torch.h"

namespace ovq::nn {

struct HeadOptions {
  int64_t width = 0;
  int64_t heads = 1;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double beta_init = 1.0;
  bool value_shift = false;
  bool convolution = false;
};

template <class Fields>
void list_fields(Fields& field, HeadOptions& o) {
  field("heads", o.heads, "heads of the queries", at_least(1));
  field("kv_heads", o.kv_heads, "heads of keys and values, a divisor of heads", or_zero(at_least(1), "as many"));
  field("head_dim", o.head_dim, "numbers per head", or_zero(at_least(1), "width / heads"));
  field("beta_init", o.beta_init, "where b starts in beta = b sqrt(head_dim), the learned factor of the logits");
  field("value_shift", o.value_shift, "insert the key of the token before, with a learned mean of both tokens' values");
  field("convolution", o.convolution, "a short convolution on queries and keys before their norm");
}

class AttentionHeads : public Mixer {
 public:
  const HeadOptions& heads() const { return heads_; }  // with the defaults filled in

 protected:
  // `op`: the name in errors.
  AttentionHeads(const char* op, const HeadOptions& options);

  struct Inputs {
    Tensor q, k, v;                         // [B, T, H, D], [B, T, Hkv, D], [B, T, Hkv, D]
    std::vector<ops::CarriedRows> carried;  // behind x, of queries, keys and values
  };
  // The options that the states of every attention layer depend on.
  StateLayout head_layout() const;
  // What the attention sees of x: projected, convolved, of unit norm, shifted, and with a rotation turned by it.
  // `state` (or null) has what convolution and shift need of the tokens before x.
  Inputs attention_inputs(const Tensor& x, const MixerState* state, const OptionalTensor& cu_seqlens,
                          const c10::optional<ops::RotaryOptions>& rotation = {});
  // Moves the state on by that.
  void carry_on(const Inputs& inputs, MixerState& state) const;
  // Bytes of that in the state of one sequence.
  int64_t input_state_bytes(int64_t tokens) const;
  Tensor beta() const;             // [H]
  Tensor output(const Tensor& o);  // [B, T, H, D] -> [B, T, width]

  Projection q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  ShortConvolution conv_q{nullptr}, conv_k{nullptr};
  Tensor b;      // [H]
  Tensor alpha;  // [], with value_shift

 private:
  const char* op_;
  HeadOptions heads_;
};

// Scales rows to norm one; zero rows stay.
Tensor unit_norm(const Tensor& x);

}  // namespace ovq::nn
