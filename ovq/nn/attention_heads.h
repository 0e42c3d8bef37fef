// Common part of the attention layers: projections without bias, unit-norm queries and keys, and beta = b sqrt(dk) with
// b learned per head. Optional, each off by default: a short convolution on queries and keys before their norm, and the
// value shift, which inserts the pair (k_{t-1}, s v_{t-1} + (1 - s) v_t) at t, with s = sigmoid(alpha); at the start of
// a sequence it is (k_0, v_0).
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/mixer.h"
#include "ovq/nn/projection.h"
#include "ovq/nn/short_convolution.h"
#include "ovq/ops/rotary.h"

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
    Tensor q, k, v;  // [B, T, H, D], [B, T, Hkv, D], [B, T, Hkv, D]
  };
  // The options that the states of every attention layer depend on.
  StateLayout head_layout() const;
  // Queries, keys and values from x: projected, convolved, normalised, shifted and, with `rotation`, rotated. `state`
  // (or null) carries the earlier tokens that convolution and shift need.
  Inputs attention_inputs(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens,
                          const c10::optional<ops::RotaryOptions>& rotation = {});
  // Bytes of these earlier tokens in the state of one sequence.
  int64_t input_state_bytes(int64_t tokens) const;
  // x [B, T, ...] delayed by one token. The first element is `name` of the state or, at the start of a sequence, its
  // own first token.
  Tensor shifted(const Tensor& x, const char* name, MixerState* state, const OptionalTensor& cu_seqlens) const;
  Tensor beta() const;             // [H]
  Tensor output(const Tensor& o);  // [B, T, H, D] -> [B, T, width]

  Projection q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  ShortConvolution conv_q{nullptr}, conv_k{nullptr};
  Tensor b;      // [H]
  Tensor alpha;  // [], with value_shift
  // Whether one op may compute queries, keys and values. It turns missing gradients into zeros; disable where keys may
  // have none.
  bool fuses_inputs = true;

 private:
  // Computes them in one op. Undefined where there are no kernels for x.
  Inputs fused_inputs(const Tensor& x, const OptionalTensor& cu_seqlens,
                      const c10::optional<ops::RotaryOptions>& rotation);

  const char* op_;
  HeadOptions heads_;
};

// Scales rows to norm one; zero rows stay.
Tensor unit_norm(const Tensor& x);

}  // namespace ovq::nn
