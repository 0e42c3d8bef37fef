// What the attention layers share: projections without bias, unit-norm queries and keys, and beta = b sqrt(dk) with b
// learned per head.
#pragma once

#include "ovq/nn/mixer.h"
#include "ovq/nn/projection.h"

namespace ovq::nn {

struct HeadOptions {
  int64_t width = 0;
  int64_t heads = 1;
  int64_t kv_heads = 0;    // a divisor of heads; 0: as many
  int64_t head_dim = 0;    // 0: width / heads
  double beta_init = 1.0;  // where b starts
};

class AttentionHeads : public Mixer {
 public:
  const HeadOptions& heads() const { return heads_; }  // with the defaults filled in

 protected:
  // `op` is what errors name.
  AttentionHeads(const char* op, const HeadOptions& options);

  struct Projected {
    Tensor q, k, v;  // [B, T, H, D], [B, T, Hkv, D], [B, T, Hkv, D]
  };
  // What the states of every attention layer depend on.
  StateLayout head_layout() const;
  Projected project(const Tensor& x);
  Tensor beta() const;             // [H]
  Tensor output(const Tensor& o);  // [B, T, H, D] -> [B, T, width]

  Projection q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  Tensor b;  // [H]

 private:
  const char* op_;
  HeadOptions heads_;
};

// Rows of norm one; zero rows stay.
Tensor unit_norm(const Tensor& x);

}  // namespace ovq::nn
