// Checkpoints of a run: <run>/checkpoints/step-000100 holds config.json and model.safetensors (together a model
// directory), the tokenizer if the model reads text, and optimizer.safetensors. A checkpoint is written completely or
// not at all. Checksums reveal damage.
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
  int64_t step = 0;     // steps completed
  int64_t skipped = 0;  // steps without an update because the loss or gradient was not finite
  int64_t tokens = 0;
};

// The moments of all parameters, named as in AdamW::state(), and the number of updates that made them.
struct OptimizerState {
  std::map<std::string, at::Tensor> moments;
  int64_t updates = 0;
};

using Warn = std::function<void(const std::string&)>;  // may be empty

std::filesystem::path checkpoint_directory(const std::filesystem::path& run);

// Why a checkpoint is read. A model does not need optimizer.safetensors, which holds two thirds of the bytes.
enum class Purpose { model, training };

// The newest checkpoint that serves the purpose and whose files all pass verification. `warn` receives a message for
// each one that was skipped. Everything that reads a run's checkpoints calls this.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& run, const Warn& warn,
                                                     Purpose purpose = Purpose::model);
// As find_checkpoint; std::runtime_error if there is none.
std::filesystem::path newest_checkpoint(const std::filesystem::path& run, const Warn& warn = {});

// The configuration of a checkpoint's model.
models::ModelConfig checkpoint_config(const std::filesystem::path& checkpoint);

// Resolves `name` to a model directory: a run resolves to its newest sound checkpoint, anything else is returned
// unchanged.
std::filesystem::path model_directory(const std::filesystem::path& name, const Warn& warn);

// The newest tokenizer.model among a run's checkpoints; its content is not checked.
std::optional<std::filesystem::path> stored_tokenizer(const std::filesystem::path& run);

// std::runtime_error if the checkpoint was trained with another tokenizer. A checkpoint without a tokenizer passes.
void check_tokenizer(const std::filesystem::path& checkpoint, const text::Tokenizer& tokenizer);

// Writes durably, then removes all but the last `keep_checkpoints`. `tokenizer` is stored beside a model of text; else
// nullptr.
void save_checkpoint(const std::filesystem::path& run, const models::LanguageModel& model,
                     const text::Tokenizer* tokenizer, const OptimizerState& optimizer, const Progress& progress,
                     int64_t keep_checkpoints);

// Loads the checkpoint that find_checkpoint returns for training into the tensors of model and optimiser. Returns
// nothing if there is no checkpoint at all; std::runtime_error if there are only unusable ones or if the checkpoint
// belongs to another model or tokenizer.
std::optional<Progress> load_checkpoint(const std::filesystem::path& run, models::LanguageModel& model,
                                        const text::Tokenizer* tokenizer, OptimizerState& optimizer, const Warn& warn);

}  // namespace ovq::train
