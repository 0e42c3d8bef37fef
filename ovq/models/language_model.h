// A language model: embedding, blocks x + mixer(norm(x)), x + mlp(norm(x)), norm, output embedding (untied).
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "ovq/models/config.h"
#include "ovq/nn/gated_mlp.h"
#include "ovq/nn/rms_norm.h"

namespace ovq::models {

using at::Tensor;
using nn::OptionalTensor;

// The memory of all layers between calls, for a batch of sequences. A new one represents an empty context.
struct ModelState {
  ModelState() = default;
  explicit ModelState(kernels::StateDtype dtype) : dtype_(dtype) {}

  std::vector<nn::MixerState> layers;

  // Of caches and dictionaries; see nn::MixerState.
  kernels::StateDtype dtype() const { return dtype_; }
  void set_dtype(kernels::StateDtype dtype);

  int64_t position() const { return layers.empty() ? 0 : layers.front().position; }
  int64_t nbytes() const;
  int64_t used_bytes() const;  // without room to grow: what a token reads
  ModelState clone() const;
  // A copy to return to. It shares the dictionaries of OVQ-attention with the original until one of them is written:
  // they cost nothing now, and one copy each when the next token is read.
  ModelState snapshot() const;

  // A safetensors file. It stores the dictionaries of OVQ-attention as their own checksummed bytes.
  void save(const std::filesystem::path& path) const;
  static ModelState load(const std::filesystem::path& path);

 private:
  kernels::StateDtype dtype_ = kernels::StateDtype::float32;
};

class Block : public torch::nn::Module {
 public:
  Block(const ModelConfig& config, int64_t layer);

  nn::RMSNorm mixer_norm{nullptr}, mlp_norm{nullptr};
  std::shared_ptr<nn::Mixer> mixer;
  nn::GatedMlp mlp{nullptr};
};

class LanguageModel : public torch::nn::Module {
 public:
  explicit LanguageModel(const ModelConfig& config);

  // tokens [B, T] int64 -> the input of the output embedding, [B, T, width]
  Tensor hidden(const Tensor& tokens, const OptionalTensor& cu_seqlens = {});
  Tensor hidden(const Tensor& tokens, ModelState& state);
  // The same only at `positions` [n] of the flattened tokens, [n, width]: everything after the last mixer is computed
  // only for these.
  Tensor hidden_at(const Tensor& tokens, const Tensor& positions);

  // [..., width] -> [..., vocab]
  Tensor logits(const Tensor& hidden) { return head(hidden); }

  // tokens [B, T] -> logits [B, T, vocab]
  Tensor forward(const Tensor& tokens, const OptionalTensor& cu_seqlens = {}) {
    return logits(hidden(tokens, cu_seqlens));
  }
  Tensor forward(const Tensor& tokens, ModelState& state) { return logits(hidden(tokens, state)); }

  // Decode, mostly one token: hidden states of `tokens` [B, T], for `logits`; `state` moves on in place. No autograd.
  Tensor step(const Tensor& tokens, ModelState& state);

  // Before and after each training step, see nn::Mixer: all noise is a function of (seed, step, layer, input).
  void begin_step(int64_t step, uint64_t seed);
  void end_step();
  void drop_step();
  std::vector<Tensor> step_statistics(int64_t rank, int64_t ranks);
  bool begins_own_step() const;
  // The sum of the layers' own losses; undefined: none.
  Tensor auxiliary_loss() const;

  void set_centroids(int64_t centroids);
  void set_centroids(const std::map<std::string, int64_t>& by_mixer);  // as config().centroids() has them
  // Bytes of the states of one sequence after `tokens` tokens.
  int64_t state_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const;

  // Rounds the matrices of projections and embeddings to bfloat16 and stores them so: half the memory, and half the
  // bytes that a decoded token reads. Computations stay in float32. Asking for a gradient is a std::invalid_argument.
  // This cannot be undone.
  void store_bfloat16_weights();
  // Bytes of parameters and buffers, and of those that one token reads: all but the other rows of the embedding.
  int64_t weight_bytes() const;
  int64_t weight_bytes_per_token() const;

  const ModelConfig& config() const { return config_; }
  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }

  nn::TokenEmbedding embed{nullptr};
  nn::RMSNorm norm{nullptr};
  nn::Projection head{nullptr};

 private:
  void check_state(const Tensor& tokens, ModelState& state) const;
  void initialize();
  void start_by_copying();
  template <class Mix>
  Tensor run(const Tensor& tokens, const Tensor& positions, Mix&& mix);  // positions undefined: all

  ModelConfig config_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

// A new model, initialised from `seed`.
std::shared_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed);

}  // namespace ovq::models
