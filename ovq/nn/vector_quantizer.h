// A learned codebook of unit-norm codewords per head, and the ways to train it.
//
//   ema       z_q = c_i with a straight-through gradient; codewords follow moving averages of the keys they stand for,
//             and a commitment loss pulls the keys (Lingle 2023)
//   diveq     z_q = z + |c_i - z| u,  u = stop[(w + c_i - z) / |w + c_i - z|],  w ~ N(0, s^2 I)  (arXiv 2509.26469)
//   sf_diveq  the same towards both ends of the nearest segment point d_j = (1 - l_j) c_j + l_j c_{j+1}, l_j ~ U(0, 1)
//
// No-use bonus: a codeword unused for m training steps gets `no_use` * m added to its similarity in the search.
#pragma once

#include "ovq/ops/torch.h"

namespace ovq::nn {

enum class CodebookTraining { ema, diveq, sf_diveq };

struct QuantizerOptions {
  int64_t heads = 1, codewords = 512, dim = 64;
  CodebookTraining training = CodebookTraining::sf_diveq;
  double no_use = 0.0025;  // 0: no bonus
  double noise = 1e-3;     // s
  double ema_decay = 0.99;
  double commitment = 1e-4;
};

class VectorQuantizer : public torch::nn::Module {
 public:
  explicit VectorQuantizer(const QuantizerOptions& options);

  // [H, K, D], unit norm
  at::Tensor codewords() const;

  // z [B, T, H, D] -> index of the nearest codeword [B, T, H]
  at::Tensor nearest(const at::Tensor& z) const;

  // Training: z [B, T, H, D] -> z_q [B, T, H, D]; notes which codewords were used, and with `ema` moves them. All noise
  // comes from `seed`.
  at::Tensor quantize(const at::Tensor& z, uint64_t seed);

  // Codewords become means of consecutive blocks of z [B, T, H, D].
  void start_from(const at::Tensor& z);

  at::Tensor commitment_loss() const { return commitment_; }  // of the last quantize with `ema`
  double similarity() const { return similarity_; }           // mean cosine of keys and codewords in the last quantize
  int64_t dead(int64_t steps) const;                          // codewords unused for at least this many steps

  const QuantizerOptions& options() const { return options_; }

  at::Tensor codebook;              // [H, K, D]
  at::Tensor unused;                // [H, K] int64: training steps since last used
  at::Tensor ema_counts, ema_sums;  // [H, K], [H, K, D], with `ema`

 private:
  at::Tensor quantize_diveq(const at::Tensor& z, uint64_t seed);
  at::Tensor quantize_sf_diveq(const at::Tensor& z, uint64_t seed);
  at::Tensor quantize_ema(const at::Tensor& z);
  void note_use(const at::Tensor& index);
  void note_similarity(const at::Tensor& z, const at::Tensor& codewords);

  QuantizerOptions options_;
  at::Tensor commitment_;
  double similarity_ = 0;
};

}  // namespace ovq::nn
