// The configuration of a language model, as stored in config.json.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ovq/models/mixer_options.h"

namespace ovq::models {

enum class Initializer {
  normal,  // every weight N(0, std^2)
  fan_in,  // weights N(0, 1 / fan_in), embeddings N(0, 1), residual outputs divided by sqrt(2 layers)
  // As fan_in, but matrices that write start as the transpose of matrices that read: the output embedding is copied
  // from the input embedding, a mixer's o_proj from its v_proj. From the first step on a layer copies the tokens that
  // it attends to.
  copying,
};

constexpr auto enum_names(Initializer) {
  using enum Initializer;
  return std::to_array<EnumName<Initializer>>({{normal, "normal"}, {fan_in, "fan_in"}, {copying, "copying"}});
}

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t width = 0;
  int64_t layers = 0;
  int64_t mlp = 0;
  double norm_eps = 1e-6;
  Initializer initializer = Initializer::normal;
  double initializer_range = 0.02;
  std::vector<std::string> pattern;            // names of mixers, repeated over the layers
  std::map<std::string, MixerOptions> mixers;  // by name

  const std::string& mixer_name(int64_t layer) const { return pattern[static_cast<size_t>(layer) % pattern.size()]; }
  const MixerOptions& mixer(int64_t layer) const { return mixers.at(mixer_name(layer)); }

  // Sets the maximum number of centroids of every ovq mixer.
  void set_centroids(int64_t centroids);
  // The maximum by mixer, to restore it after trying others.
  std::map<std::string, int64_t> centroids() const;
  void set_centroids(const std::map<std::string, int64_t>& by_mixer);
};

// All fields but the mixers and their pattern.
template <class Fields>
void list_fields(Fields& field, ModelConfig& c) {
  field("vocab_size", c.vocab_size, "number of different tokens", at_least(1));
  field("hidden_size", c.width, "width of the residual stream", at_least(1));
  field("num_hidden_layers", c.layers, "number of layers, each a mixer and a gated MLP", at_least(1));
  field("intermediate_size", c.mlp, "width inside the gated MLPs", at_least(1));
  field("rms_norm_eps", c.norm_eps, "added to the mean square in the norms", above(0));
  field("initializer", c.initializer, "initial distribution of the weights");
  field("initializer_range", c.initializer_range, "standard deviation of the initializer normal");
}

// Errors (std::invalid_argument) name the field, its value and the allowed values.
ModelConfig config_from_json(const nlohmann::json& object);
nlohmann::json to_json(const ModelConfig& config);
// Removes retired fields from a patch of a configuration (RFC 7396), so that patches of different versions compare
// equal. `base` gives the types of the mixers.
nlohmann::json without_retired_fields(nlohmann::json patch, const ModelConfig& base);
// The configuration as text, without the number of centroids, which may change. Two models with equal text and equal
// weights accept each other's states.
std::string identity(ModelConfig config);
ModelConfig load_config(const std::filesystem::path& file);

}  // namespace ovq::models
