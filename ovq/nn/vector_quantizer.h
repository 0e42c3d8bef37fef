// A learned codebook of unit-norm codewords per head, and the ways to train it.
//
//   ema              a straight-through gradient; codewords follow moving averages of their keys, and a commitment
//                    loss pulls the keys towards them (Lingle 2023)
//   diveq, sf_diveq  codewords learn by gradients; see ops/vector_quantize.h
//
// No-use bonus: a codeword unused for m training steps gets `no_use` * m added to its similarity in the search.
//
// A training step may have several forwards (lengths, parts of a batch, ranks). Codewords and counters do not change
// within a step: forwards record statistics, and end_step() applies all of them, with the same result on every rank if
// the statistics were summed over the ranks before.
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
enum class Note { no, yes };  // whether to record statistics: not for a forward that repeats another

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

  // Collects keys z [B, T, H, D] to initialise the codebook.
  void collect(const at::Tensor& z);

  // Statistics since the last step's end. Ranks sum each tensor in place before end_step(); shapes are equal on all
  // ranks.
  std::vector<at::Tensor> statistics();
  // The same for the collected keys: part `rank` of `ranks` of the initial codewords, zeros elsewhere.
  at::Tensor start_statistics(int64_t rank, int64_t ranks);
  // Updates counters and, with `ema`, codewords. If keys were collected, initialises the codewords with means of
  // consecutive blocks of them, forward by forward, and returns true.
  bool end_step();
  // Discards the statistics.
  void drop_step();

  // Of the last quantize with `ema`: summed over heads, averaged over tokens.
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
