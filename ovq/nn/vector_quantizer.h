// A learned codebook of unit-norm codewords per head, and the ways to train it.
//
//   ema       a straight-through gradient; codewords follow moving averages of the keys they stand for, and a
//   commitment
//             loss pulls the keys (Lingle 2023)
//   diveq, sf_diveq  codewords learn by gradients; see ops/vector_quantize.h
//
// No-use bonus: a codeword unused for m training steps gets `no_use` * m added to its similarity in the search.
//
// A training step may have several forwards (lengths, parts of a batch, ranks). Codewords and counters stand still in
// it: its forwards are only noted, and end_step() moves them on by all that was noted, on every rank alike if the
// statistics were added up before.
#pragma once

#include <array>
#include <vector>

#include "ovq/base/fields.h"
#include "ovq/ops/vector_quantize/torch.h"

namespace ovq::nn {

enum class CodebookTraining { ema, diveq, sf_diveq };
constexpr auto enum_names(CodebookTraining) {
  using enum CodebookTraining;
  return std::to_array<EnumName<CodebookTraining>>({{sf_diveq, "sf-diveq"}, {diveq, "diveq"}, {ema, "ema"}});
}
enum class Note { no, yes };  // whether a forward counts: one that repeats another does not

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

  // Training: z [B, T, H, D] -> z_q [B, T, H, D]. All noise comes from `seed`.
  at::Tensor quantize(const at::Tensor& z, uint64_t seed, Note noted = Note::yes);

  // Keys z [B, T, H, D] for the codebook to start from.
  void collect(const at::Tensor& z);

  // What was noted since the last step's end. Ranks add these up, each tensor in place, before end_step(); they have
  // the same shapes on all of them.
  std::vector<at::Tensor> statistics();
  // The same for the collected keys: the r-th of `ranks` parts of the codewords they become, zeros for the others.
  at::Tensor start_statistics(int64_t rank, int64_t ranks);
  // Counters and, with `ema`, codewords move on. If keys were collected, the codewords become means of consecutive
  // blocks of them, forward after forward, and the result is true.
  bool end_step();
  // Forgets what was noted.
  void drop_step();

  // Of the last quantize with `ema`: the sum over heads, averaged over tokens.
  at::Tensor commitment_loss() const { return commitment_; }
  double similarity() const { return similarity_; }  // mean cosine of keys and codewords in the last quantize
  int64_t dead(int64_t steps) const;                 // codewords unused for at least this many steps

  const QuantizerOptions& options() const { return options_; }

  at::Tensor codebook;              // [H, K, D]
  at::Tensor unused;                // [H, K] int64: training steps since last used
  at::Tensor ema_counts, ema_sums;  // [H, K], [H, K, D], with `ema`

 private:
  // z [H, M, D] and what it became
  void note(const at::Tensor& z, const at::Tensor& words, const ops::VectorQuantized& quantized);

  QuantizerOptions options_;
  at::Tensor commitment_;
  double similarity_ = 0;
  // Of this step. used [H, K]: how often; sums [H, K, D] with `ema`; undefined: nothing yet
  at::Tensor used_, sums_;
  std::vector<at::Tensor> collected_;  // a forward's block means each, [H, blocks, D]
  at::Tensor start_;                   // [H, K, D]: what they become, on this rank or added up
};

}  // namespace ovq::nn
