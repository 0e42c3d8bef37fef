#include "ovq/models/language_model.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ovq/base/error.h"
#include "ovq/base/random.h"
#include "ovq/nn/parameters.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"

namespace ovq::models {
namespace {

// A mixer's projections, after its name.
constexpr std::string_view kValueProjection = ".v_proj.weight";
constexpr std::string_view kOutputProjection = ".o_proj.weight";

// Hashes two numbers into one.
uint64_t mixed(uint64_t a, uint64_t b) { return mix_bits(a + kGoldenRatio * (b + 1)); }

bool ends_residual(const std::string& name) {
  for (const char* end : {"o_proj.weight", "out_proj.weight", "down_proj.weight"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// x + y. For a few tokens without gradients it adds into y, which no one else holds: a call of torch would take longer.
Tensor sum_of(const Tensor& x, const Tensor& y) {
  constexpr int64_t kFew = 1 << 14;
  const bool floats = x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat;
  if (x.numel() > kFew || ops::needs_gradient({x, y}) || !floats || !x.is_contiguous() || !y.is_contiguous() ||
      x.sizes() != y.sizes()) {
    return x + y;
  }
  const float* const from = x.data_ptr<float>();
  float* const to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] += from[i];
  return y;
}

// The matrices of projections and embeddings.
std::vector<Tensor> stored_weights(const torch::nn::Module& model) {
  std::vector<Tensor> weights;
  for (const auto& part : model.modules(false)) {
    if (const auto* one = dynamic_cast<const nn::ProjectionImpl*>(part.get())) weights.push_back(one->weight);
    if (const auto* one = dynamic_cast<const nn::TokenEmbeddingImpl*>(part.get())) weights.push_back(one->weight);
  }
  return weights;
}

void place_weight(Tensor& weight, at::ScalarType dtype) {
  const Tensor placed = ops::empty_weights(weight.sizes(), dtype);
  placed.copy_(weight);
  weight.set_data(placed);
}

}  // namespace

void ModelState::set_dtype(kernels::StateDtype dtype) {
  dtype_ = dtype;
  for (nn::MixerState& layer : layers) layer.dtype = dtype;
}

int64_t ModelState::nbytes() const {
  int64_t bytes = 0;
  for (const nn::MixerState& layer : layers) bytes += layer.nbytes();
  return bytes;
}

int64_t ModelState::used_bytes() const {
  int64_t bytes = 0;
  for (const nn::MixerState& layer : layers) bytes += layer.used_bytes();
  return bytes;
}

ModelState ModelState::clone() const {
  ModelState copy(dtype_);
  for (const nn::MixerState& layer : layers) copy.layers.push_back(layer.clone());
  return copy;
}

ModelState ModelState::snapshot() const {
  ModelState copy(dtype_);
  for (const nn::MixerState& layer : layers) copy.layers.push_back(layer.snapshot());
  return copy;
}

Block::Block(const ModelConfig& config, int64_t layer) {
  mixer_norm = register_module("mixer_norm", nn::RMSNorm(config.width, config.norm_eps));
  mixer = register_module("mixer", make_mixer(config.mixer(layer)));
  mlp_norm = register_module("mlp_norm", nn::RMSNorm(config.width, config.norm_eps));
  mlp = register_module("mlp", nn::GatedMlp(config.width, config.mlp));
}

LanguageModel::LanguageModel(const ModelConfig& config) : config_(config) {
  embed = register_module("embed", nn::TokenEmbedding(config.vocab_size, config.width));
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.push_back(std::make_shared<Block>(config, layer));
    layers->push_back(blocks_.back());
  }
  norm = register_module("norm", nn::RMSNorm(config.width, config.norm_eps));
  head = register_module("head", nn::make_projection(config.width, config.vocab_size));
  const torch::NoGradGuard no_grad;
  for (Tensor& weight : stored_weights(*this)) place_weight(weight, weight.scalar_type());
  initialize();
}

// Initialises the matrices of projections and embeddings; mixers initialise their other parameters.
void LanguageModel::initialize() {
  const torch::NoGradGuard no_grad;
  const bool fan_in = config_.initializer != Initializer::normal;
  embed->weight.normal_(0.0, fan_in ? 1.0 : config_.initializer_range);
  for (auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    Tensor& weight = parameter.value();
    if (weight.dim() != 2 || !(name.ends_with("_proj.weight") || name == "head.weight")) continue;
    double std = fan_in ? 1.0 / std::sqrt(static_cast<double>(weight.size(1))) : config_.initializer_range;
    if (fan_in && ends_residual(name)) std /= std::sqrt(2.0 * static_cast<double>(config_.layers));
    weight.normal_(0.0, std);
  }
  if (config_.initializer == Initializer::copying) start_by_copying();
}

// The distribution of each single matrix stays the same.
void LanguageModel::start_by_copying() {
  head->weight.copy_(embed->weight / std::sqrt(static_cast<double>(config_.width)));
  auto parameters = named_parameters();
  for (auto& parameter : parameters) {
    std::string_view mixer = parameter.key();
    if (!mixer.ends_with(kOutputProjection)) continue;
    mixer.remove_suffix(kOutputProjection.size());
    Tensor& output = parameter.value();
    const Tensor* values = parameters.find(std::string(mixer) + std::string(kValueProjection));
    if (values == nullptr || values->sizes() != output.t().sizes()) continue;
    const auto scale = std::sqrt(static_cast<double>(config_.width) / static_cast<double>(output.size(1)));
    output.copy_(values->t() * (scale / std::sqrt(2.0 * static_cast<double>(config_.layers))));
  }
}

template <class Mix>
Tensor LanguageModel::run(const Tensor& tokens, const Tensor& positions, Mix&& mix) {
  check(tokens.dim() == 2, "model", "tokens has ", tokens.dim(), " dimensions; must have 2: [batch, time]");
  TORCH_CHECK_TYPE(tokens.scalar_type() == at::kLong || tokens.scalar_type() == at::kInt, "[model] tokens has dtype ",
                   tokens.scalar_type(), "; must be int64 or int32");
  // With bfloat16 weights, computations are in the float32 of the norms.
  Tensor x = embed(tokens).to(norm->weight.scalar_type());
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Block& block = *blocks_[layer];
    x = sum_of(x, mix(layer, *block.mixer, block.mixer_norm(x)));
    if (positions.defined() && layer + 1 == blocks_.size()) x = x.flatten(0, 1).index_select(0, positions);
    x = block.mlp->add_to(x, block.mlp_norm);
  }
  return norm(x);
}

Tensor LanguageModel::hidden(const Tensor& tokens, const OptionalTensor& cu_seqlens) {
  return run(tokens, {}, [&](size_t, nn::Mixer& mixer, const Tensor& x) { return mixer.forward(x, cu_seqlens); });
}

Tensor LanguageModel::hidden_at(const Tensor& tokens, const Tensor& positions) {
  return run(tokens, positions, [](size_t, nn::Mixer& mixer, const Tensor& x) { return mixer.forward(x); });
}

Tensor LanguageModel::hidden(const Tensor& tokens, ModelState& state) {
  check_state(tokens, state);
  return run(tokens, {}, [&](size_t layer, nn::Mixer& mixer, const Tensor& x) {
    return mixer.mix_checked(x, state.layers[layer]);
  });
}

Tensor LanguageModel::step(const Tensor& tokens, ModelState& state) {
  const torch::NoGradGuard no_grad;
  // A token takes some hundred small calls of torch; this spares each the search for autograd.
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  check_state(tokens, state);
  return run(tokens, {}, [&](size_t layer, nn::Mixer& mixer, const Tensor& x) {
    return mixer.mix_checked(x, state.layers[layer]);
  });
}

// Called before the first layer changes its state.
void LanguageModel::check_state(const Tensor& tokens, ModelState& state) const {
  if (state.layers.empty()) {
    state.layers.resize(blocks_.size());
    state.set_dtype(state.dtype());
  }
  check(state.layers.size() == blocks_.size(), "model", "state has ", state.layers.size(), " layers; must have ",
        blocks_.size());
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    check(state.layers[layer].position == state.position(), "model", "state's layers have read ", state.position(),
          " and ", state.layers[layer].position,
          " tokens; must have read the same number. This happens when an earlier call failed halfway");
  }
  for (size_t layer = 0; layer < blocks_.size() && tokens.dim() == 2; ++layer) {
    blocks_[layer]->mixer->check_state(state.layers[layer], tokens.size(0));
  }
}

void LanguageModel::begin_step(int64_t step, uint64_t seed) {
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    blocks_[layer]->mixer->begin_step(step, mixed(mixed(seed, static_cast<uint64_t>(step)), layer));
  }
}

void LanguageModel::end_step() {
  for (const auto& block : blocks_) block->mixer->end_step();
}

void LanguageModel::drop_step() {
  for (const auto& block : blocks_) block->mixer->drop_step();
}

std::vector<Tensor> LanguageModel::step_statistics(int64_t rank, int64_t ranks) {
  std::vector<Tensor> all;
  for (const auto& block : blocks_) {
    for (const Tensor& one : block->mixer->step_statistics(rank, ranks)) all.push_back(one);
  }
  return all;
}

bool LanguageModel::begins_own_step() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const auto& block) { return block->mixer->begins_own_step(); });
}

Tensor LanguageModel::auxiliary_loss() const {
  Tensor sum;
  for (const auto& block : blocks_) {
    const Tensor loss = block->mixer->auxiliary_loss();
    if (loss.defined()) sum = sum.defined() ? sum + loss : loss;
  }
  return sum;
}

void LanguageModel::set_centroids(int64_t centroids) {
  config_.set_centroids(centroids);
  for (const auto& block : blocks_) {
    if (auto* ovq = dynamic_cast<nn::OvqAttention*>(block->mixer.get())) ovq->set_centroids(centroids);
  }
}

void LanguageModel::set_centroids(const std::map<std::string, int64_t>& by_mixer) {
  config_.set_centroids(by_mixer);
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const auto centroids = by_mixer.find(config_.mixer_name(static_cast<int64_t>(layer)));
    auto* ovq = dynamic_cast<nn::OvqAttention*>(blocks_[layer]->mixer.get());
    if (ovq != nullptr && centroids != by_mixer.end()) ovq->set_centroids(centroids->second);
  }
}

int64_t LanguageModel::state_bytes(int64_t tokens, kernels::StateDtype dtype) const {
  int64_t bytes = 0;
  for (const auto& block : blocks_) bytes += block->mixer->state_bytes(tokens, dtype);
  return bytes;
}

void LanguageModel::store_bfloat16_weights() {
  const torch::NoGradGuard no_grad;
  for (Tensor& weight : stored_weights(*this)) {
    if (weight.scalar_type() == at::kFloat) place_weight(weight, at::kBFloat16);
  }
}

int64_t LanguageModel::weight_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& x : parameters()) bytes += static_cast<int64_t>(x.nbytes());
  for (const Tensor& x : buffers()) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

int64_t LanguageModel::weight_bytes_per_token() const {
  const Tensor& table = embed->weight;
  return weight_bytes() - static_cast<int64_t>(table.nbytes()) * (table.size(0) - 1) / table.size(0);
}

std::shared_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<LanguageModel>(config);
}

}  // namespace ovq::models
