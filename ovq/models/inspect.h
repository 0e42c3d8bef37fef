// The cost of a model before it is built: parameters by part, and bytes of state and FLOPs by the length of the
// context.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ovq/models/storage.h"

namespace ovq::models {

struct ModelConfig;

struct MixerInspection {
  std::string name, type;       // in the pattern; of the mixer
  std::string options;          // sizes, and options that differ from their default
  std::vector<int64_t> layers;  // layers with this mixer
  int64_t parameters = 0;       // of one layer
  int64_t matrices = 0;         // of these, in matrices: one multiply-add each per token
};

// Of one layer with that mixer; FLOPs are those of flops.h, per token.
struct MixerCost {
  int64_t state_bytes = 0;
  double forward = 0, backward = 0;
  std::optional<double> paper_inference, paper_training;
};

struct ContextCost {
  int64_t context = 0;
  std::vector<MixerCost> mixers;     // as in Inspection::mixers
  int64_t state_bytes = 0;           // of all layers
  int64_t saved_bytes = 0;           // in a file, with the logits of the next token (state_file.h)
  int64_t kv_cache_bytes = 0;        // of keys and values of all tokens, for comparison
  double forward = 0, backward = 0;  // of all layers, the matrices and the output embedding
};

struct Inspection {
  std::string name;          // as given
  std::string printed_size;  // in the paper; empty: not in it
  int64_t layers = 0;
  int64_t embedding = 0, mlps = 0, norms = 0, head = 0, total = 0;  // parameters
  int64_t weight_bytes = 0;
  StorageOptions storage;
  std::vector<MixerInspection> mixers;
  std::vector<ContextCost> contexts;
};

// 1k, 4k, ... 1M
std::vector<int64_t> default_contexts();

Inspection inspect(const ModelConfig& config, const std::vector<int64_t>& contexts = default_contexts(),
                   const StorageOptions& storage = {});

// A preset's name, or a directory with a config.json. Any other text is a std::invalid_argument that names the closest
// presets.
Inspection inspect(const std::string& model, const std::vector<int64_t>& contexts = default_contexts(),
                   const StorageOptions& storage = {});

// Bytes of keys and values of all tokens if every layer attended to the whole context: with the layer's own kv heads,
// or as wide as the model where a layer has none.
int64_t kv_cache_bytes(const ModelConfig& config, int64_t tokens, StateDtype dtype = StateDtype::float32);

std::string to_table(const Inspection& inspection);
nlohmann::json to_json(const Inspection& inspection);

// The presets, a line each.
std::string preset_table();

}  // namespace ovq::models
