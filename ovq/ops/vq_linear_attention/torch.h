// Attention to keys that are codewords, linear in the length: chunk c reads the codewords, with counts and mean values
// of chunks <= c - 2, and the tokens of chunks c - 1 and c one by one. Equal keys have equal logits, so this is
//   o_t = softmax(beta q_t K^T) V,  K_s = codewords[index_s]
// Cost per token and head: (K + C) (dk + 2 dv) multiply-adds.
#pragma once

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

struct VqState {
  at::Tensor counts, means;  // of the codewords, [B, Hkv, K] and [B, Hkv, K, D]; undefined: before the first token
  at::Tensor index, values;  // of the tokens since, at most two chunks, [B, t, Hkv] and [B, t, Hkv, D]
  int64_t position = 0;      // tokens seen
};

// q [B, T, H, D], index [B, T, Hkv] of codewords [Hkv, K, D], v [B, T, Hkv, D], beta [H] -> o [B, T, H, D]. `state`
// moves on; its tensors are replaced, not written to.
at::Tensor vq_linear_attention(const at::Tensor& q, const at::Tensor& index, const at::Tensor& codewords,
                               const at::Tensor& v, const at::Tensor& beta, int64_t chunk, VqState& state);

}  // namespace ovq::ops
