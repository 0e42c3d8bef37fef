// Vectors replaced by codewords of norm one, each head with its own, and three ways to pass gradients through that.
// With c the codeword of the largest z . c_j + bonus_j, the nearest one where there is no bonus:
//   straight_through  z_q = c, with dz = dz_q and no gradient by the codewords
//   diveq             z_q = z + |c - z| u,  u = stop[(w + c - z) / |w + c - z|],  w ~ N(0, noise^2 I)  (arXiv
//   2509.26469) sf_diveq          the same towards both ends of the nearest point d_j = (1 - l_j) c_j + l_j c_{j+1},
//   l_j ~ U(0, 1):
//                     z_q = z + (1 - l) |c_j - z| u_j + l |c_{j+1} - z| u_{j+1}
// Cost: K D multiply-adds per vector.
#pragma once

#include <cstdint>

#include "ovq/ops/torch/torch.h"

namespace ovq::ops {

enum class QuantizerGradient { straight_through, diveq, sf_diveq };

struct VectorQuantizeInputs {
  at::Tensor z;          // [H, M, D]
  at::Tensor codewords;  // [H, K, D], of norm one; at least two with sf_diveq
  at::Tensor bonus;      // [H, K]; undefined: none. A segment has the larger one of its ends.
  QuantizerGradient gradient = QuantizerGradient::straight_through;
  double noise = 1e-3;
  uint64_t seed = 0;  // of the noise and the l_j
};

struct VectorQuantized {
  at::Tensor z_q;       // [H, M, D]
  at::Tensor index;     // of the codeword, or of the first one of the segment, [H, M]
  at::Tensor codeword;  // [H, M, D]; undefined with sf_diveq
};

VectorQuantized vector_quantize(const VectorQuantizeInputs& inputs);

// argmax over j of z . c_j + bonus_j: z [H, M, D], codewords [H, K, D], bonus [H, K] or undefined -> [H, M]
at::Tensor nearest_codeword(const at::Tensor& z, const at::Tensor& codewords, const at::Tensor& bonus = {});

// Rows index [H, M] of x [H, K, D] -> [H, M, D]
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& index);

// What tells the forwards of a training step apart. A number that two tensors share if they have the same elements, and
// else hardly ever; and whether this thread is in a backward pass, where activation checkpointing computes one again.
uint64_t fingerprint(const at::Tensor& x);
bool inside_backward();

// Layouts: [B, T, H, D] -> [H, B T, D], and back: [H, B T, ...] -> [B, T, H, ...]
at::Tensor by_head(const at::Tensor& x);
at::Tensor by_token(const at::Tensor& x, const c10::SymInt& batch, const c10::SymInt& time);

}  // namespace ovq::ops
