// Checkpoints of a run: <run>/checkpoints/step-000100 with config.json, model.safetensors (a model directory by itself)
// with the tokenizer of a model of text, and optimizer.safetensors. Each is there whole or not at all; damage is found
// by checksums.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "ovq/models/language_model.h"
#include "ovq/text/tokenizer.h"
#include "ovq/train/adamw.h"

namespace ovq::train {

struct Progress {
  int64_t step = 0;     // steps done
  int64_t skipped = 0;  // of them without an update, for a loss or gradient that was not finite
  int64_t tokens = 0;
};

// The moments of all parameters, as AdamW::state() names them, and how many updates made them.
struct OptimizerState {
  std::map<std::string, at::Tensor> moments;
  int64_t updates = 0;
};

using Warn = std::function<void(const std::string&)>;  // may be empty

std::filesystem::path checkpoint_directory(const std::filesystem::path& run);

// What a checkpoint is read for: a model needs no optimizer.safetensors, which has two thirds of the bytes.
enum class Purpose { model, training };

// The newest checkpoint that serves the purpose and of which every file is as it was written; `warn` hears of those
// that were passed over. Whoever reads a run's checkpoints asks here.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& run, const Warn& warn,
                                                     Purpose purpose = Purpose::model);
// The same; std::runtime_error if there is none.
std::filesystem::path newest_checkpoint(const std::filesystem::path& run, const Warn& warn = {});

// What a checkpoint says its model is.
models::ModelConfig checkpoint_config(const std::filesystem::path& checkpoint);

// Where the model is that `name` names: there, or, if that is a run, in its newest sound checkpoint. What is no
// directory is returned as it is.
std::filesystem::path model_directory(const std::filesystem::path& name, const Warn& warn);

// The newest tokenizer.model that a run's checkpoints hold; its content is not looked at.
std::optional<std::filesystem::path> stored_tokenizer(const std::filesystem::path& run);

// std::runtime_error if the checkpoint was trained with another tokenizer than this; one that stores none passes.
void check_tokenizer(const std::filesystem::path& checkpoint, const text::Tokenizer& tokenizer);

// Durable; then all but the last `keep` are removed.
// `tokenizer`: of a model of text, stored beside it; else nullptr.
void save_checkpoint(const std::filesystem::path& run, const models::LanguageModel& model,
                     const text::Tokenizer* tokenizer, const OptimizerState& optimizer, const Progress& progress,
                     int64_t keep);

// Loads what find_checkpoint finds for training, into the tensors of model and optimiser; nothing if there is no
// checkpoint, std::runtime_error if there are others only. A checkpoint of another model or tokenizer is an error.
std::optional<Progress> load_checkpoint(const std::filesystem::path& run, models::LanguageModel& model,
                                        const text::Tokenizer* tokenizer, OptimizerState& optimizer, const Warn& warn);

}  // namespace ovq::train
