// VQ-attention as a layer: causal attention with every key replaced by its nearest codeword of a learned codebook.
//
//   quadratic  attention to the quantized keys
//   linear     chunk c reads the codewords, with counts and mean values of chunks <= c - 2,
//              and the tokens of chunks c - 1 and c one by one;
//              equal keys have equal logits, so both are the same function
//
// Training uses the quadratic form, whose keys carry the gradients of the codebook. With a state the linear form runs,
// which cannot train: the choice of a codeword has no gradient.
//
// Warm-up: until the codebook has started from the keys of a training step, keys stay as they are, in training and
// outside of it, and the state is a cache of keys and values.
#pragma once

#include <array>
#include <set>

#include "ovq/nn/attention_heads.h"
#include "ovq/nn/vector_quantizer.h"

namespace ovq::nn {

enum class VqForm { quadratic, linear };
constexpr auto enum_names(VqForm) {
  return std::to_array<EnumName<VqForm>>({{VqForm::quadratic, "quadratic"}, {VqForm::linear, "linear"}});
}

struct VqAttentionOptions {
  HeadOptions heads;
  int64_t codewords = 512;
  int64_t chunk = 128;
  VqForm form = VqForm::quadratic;
  CodebookTraining training = CodebookTraining::sf_diveq;
  double no_use = 0.0025;
  double noise = 1e-3;
  double ema_decay = 0.99;
  double commitment = 1e-4;
  int64_t warmup = 0;
};

template <class Fields>
void list_fields(Fields& field, VqAttentionOptions& o) {
  list_fields(field, o.heads);
  field("codewords", o.codewords, "codewords per kv head", at_least(2));
  field("chunk", o.chunk, "tokens that join the dictionary of the linear form at a time", at_least(1));
  field("form", o.form, "how to compute it outside of training and without a state; the same function");
  field("training", o.training, "of the codebook");
  field("no_use", o.no_use, "bonus per step for codewords that nothing used", at_least(0));
  field("noise", o.noise, "of both DiVeQs", at_least(0));
  field("ema_decay", o.ema_decay, "of the moving averages", between(0, 1));
  field("commitment", o.commitment, "weight of the commitment loss of ema", at_least(0));
  field("warmup", o.warmup, "training steps with keys as they are, at least one; the last one's start the codebook",
        at_least(0));
}

class VqAttention : public AttentionHeads {
 public:
  explicit VqAttention(const VqAttentionOptions& options);

  const VqAttentionOptions& options() const { return options_; }
  VectorQuantizer& quantizer() { return *quantizer_; }
  int64_t state_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const override;
  void begin_step(int64_t step, uint64_t seed) override;
  void end_step() override;
  void drop_step() override;
  std::vector<Tensor> step_statistics(int64_t rank, int64_t ranks) override;
  bool begins_own_step() const override;
  Tensor auxiliary_loss() const override;

  bool started() const;
  // Ends the warm-up with the codebook as it is.
  void start();

 protected:
  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

 private:
  Tensor training_keys(const Tensor& k);
  Tensor attend_unquantized(const Inputs& in, MixerState* state, const OptionalTensor& cu_seqlens);
  Tensor attend_codewords(const Inputs& in, const Tensor& index, const Tensor& codewords, MixerState& state);

  VqAttentionOptions options_;
  std::shared_ptr<VectorQuantizer> quantizer_;
  Tensor started_;  // [] int64 buffer: whether the codebook has its first values
  Tensor auxiliary_;
  int64_t step_ = -1;
  uint64_t seed_ = 0;
  bool told_ = false;            // begin_step was called
  std::set<uint64_t> forwards_;  // fingerprints of the keys of this step's forwards
};

}  // namespace ovq::nn
