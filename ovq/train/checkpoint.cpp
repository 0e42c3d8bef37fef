#include "ovq/train/checkpoint.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ovq/base/files/durable.h"
#include "ovq/base/files/numbered_directories.h"
#include "ovq/models/weights.h"

namespace ovq::train {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kConfigKey = "ovq.config";
constexpr const char* kTokenizerKey = "ovq.tokenizer";
constexpr const char* kTokenizer = "tokenizer.model";
constexpr const char* kOnlyDamaged = " has only damaged checkpoints";
constexpr const char* kNoOptimizer =
    " has no checkpoint with optimizer.safetensors, which --resume needs; eval and generate work without it";

using models::identity;

int64_t number(const files::Metadata& metadata, const std::string& key) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) throw std::runtime_error("no " + key);
  return std::stoll(at->second);
}

// Returns the metadata of a file after verifying its checksum.
files::Metadata verified(const std::filesystem::path& path) {
  const files::Safetensors file(path);
  if (file.verify() != files::Integrity::verified) throw std::runtime_error(path.string() + " has no checksum");
  return file.metadata();
}

// config.json has no checksum of its own, so the weights' file stores its content. Both are compared as configurations:
// fields with defaults may have been added since.
void check_config(const std::filesystem::path& directory, const files::Metadata& weights) {
  const auto written = weights.find(kConfigKey);
  if (written == weights.end()) throw std::runtime_error((directory / kWeights).string() + " has no " + kConfigKey);
  const models::ModelConfig config = checkpoint_config(directory);
  if (identity(config) != identity(models::config_from_json(nlohmann::json::parse(written->second))))
    throw std::runtime_error((directory / kConfig).string() + " does not match the weights beside it");
}

// The tokenizer has no checksum either. Checkpoints of versions that did not store its identity pass.
void check_stored_tokenizer(const std::filesystem::path& directory, const files::Metadata& weights) {
  const auto written = weights.find(kTokenizerKey);
  if (written == weights.end()) return;
  const auto stored = text::load_tokenizer(directory.string());
  if (stored == nullptr || stored->identity() != written->second)
    throw std::runtime_error("the tokenizer in " + directory.string() + " does not match the weights beside it");
}

bool has_any(const std::filesystem::path& run) {
  return !files::latest_first(checkpoint_directory(run), kPrefix).empty();
}

// Throws if the checkpoint is damaged.
void check_sound(const std::filesystem::path& directory) {
  const files::Metadata weights = verified(directory / kWeights);
  check_config(directory, weights);
  check_stored_tokenizer(directory, weights);
  if (!std::filesystem::exists(directory / kOptimizer)) return;  // a model without optimiser state
  const files::Metadata metadata = verified(directory / kOptimizer);
  for (const char* key : {"step", "skipped", "tokens", "updates"}) number(metadata, key);
}

}  // namespace

std::filesystem::path checkpoint_directory(const std::filesystem::path& run) { return run / "checkpoints"; }

void save_checkpoint(const std::filesystem::path& run, const models::LanguageModel& model,
                     const text::Tokenizer* tokenizer, const OptimizerState& optimizer, const Progress& progress,
                     int64_t keep_checkpoints) {
  const std::filesystem::path directory = checkpoint_directory(run);
  std::filesystem::create_directories(directory);
  files::write_directory_durably(
      files::numbered_path(directory, kPrefix, progress.step),
      [&](const std::filesystem::path& aside) {
        files::write_file_durably(aside / kConfig, models::to_json(model.config()).dump(2) + "\n");
        files::Metadata about = {{kConfigKey, identity(model.config())}};
        if (tokenizer != nullptr) about[kTokenizerKey] = tokenizer->identity();
        models::save_tensors(aside / kWeights, models::named_tensors(model), about);
        if (tokenizer != nullptr) text::save_tokenizer(*tokenizer, aside.string());
        models::save_tensors(aside / kOptimizer, optimizer.moments,
                             {{"step", std::to_string(progress.step)},
                              {"skipped", std::to_string(progress.skipped)},
                              {"tokens", std::to_string(progress.tokens)},
                              {"updates", std::to_string(optimizer.updates)}});
      },
      files::IfExists::replace);
  // Later checkpoints are damaged, otherwise the run would have resumed from them. They must not count among the last.
  for (const files::NumberedDirectory& other : files::latest_first(directory, kPrefix)) {
    if (other.number > progress.step) files::remove_durably(other.path);
  }
  files::keep_last(directory, kPrefix, keep_checkpoints);
}

std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& run, const Warn& warn,
                                                     Purpose purpose) {
  for (const files::NumberedDirectory& candidate : files::latest_first(checkpoint_directory(run), kPrefix)) {
    if (purpose == Purpose::training && !std::filesystem::exists(candidate.path / kOptimizer)) {
      if (warn) warn(candidate.path.string() + " has no optimizer.safetensors; training cannot resume from it");
      continue;
    }
    try {
      check_sound(candidate.path);
      return candidate.path;
    } catch (const std::exception& error) {
      if (warn) warn("skipping a damaged checkpoint: " + std::string(error.what()));
    }
  }
  return std::nullopt;
}

std::filesystem::path newest_checkpoint(const std::filesystem::path& run, const Warn& warn) {
  const auto found = find_checkpoint(run, warn);
  if (!found) throw std::runtime_error(run.string() + (has_any(run) ? kOnlyDamaged : " has no checkpoint"));
  return *found;
}

models::ModelConfig checkpoint_config(const std::filesystem::path& checkpoint) {
  return models::load_config(checkpoint / kConfig);
}

std::optional<std::filesystem::path> stored_tokenizer(const std::filesystem::path& run) {
  for (const files::NumberedDirectory& checkpoint : files::latest_first(checkpoint_directory(run), kPrefix)) {
    if (std::filesystem::exists(checkpoint.path / kTokenizer)) return checkpoint.path / kTokenizer;
  }
  return std::nullopt;
}

void check_tokenizer(const std::filesystem::path& checkpoint, const text::Tokenizer& tokenizer) {
  const auto stored = text::load_tokenizer(checkpoint.string());
  if (stored == nullptr || stored->identity() == tokenizer.identity()) return;
  throw std::runtime_error(checkpoint.string() + " was trained with another tokenizer, " + stored->identity() +
                           "; the task's is " + tokenizer.identity());
}

std::filesystem::path model_directory(const std::filesystem::path& name, const Warn& warn) {
  const bool model = std::filesystem::exists(name / kConfig) || std::filesystem::exists(name / kWeights);
  return !model && std::filesystem::is_directory(checkpoint_directory(name)) ? newest_checkpoint(name, warn) : name;
}

std::optional<Progress> load_checkpoint(const std::filesystem::path& run, models::LanguageModel& model,
                                        const text::Tokenizer* tokenizer, OptimizerState& optimizer, const Warn& warn) {
  if (std::filesystem::is_directory(checkpoint_directory(run))) files::remove_stale_parts(checkpoint_directory(run));
  const auto directory = find_checkpoint(run, warn, Purpose::training);
  if (!directory) {
    // Restarting from step 1 would overwrite them, so the user must remove them first.
    if (has_any(run))
      throw std::runtime_error(run.string() + (find_checkpoint(run, {}) ? kNoOptimizer : kOnlyDamaged) +
                               "; to start again from step 1, remove " + checkpoint_directory(run).string());
    return std::nullopt;
  }
  if (identity(checkpoint_config(*directory)) != identity(model.config()))
    throw std::runtime_error(directory->string() + " is a checkpoint of another model than the one in run.json");
  if (tokenizer != nullptr) check_tokenizer(*directory, *tokenizer);
  const models::LoadedTensors weights = models::load_tensors(*directory / kWeights);
  const models::LoadedTensors moments = models::load_tensors(*directory / kOptimizer);
  models::assign_tensors(optimizer.moments, moments.tensors, *directory / kOptimizer);
  models::assign_tensors(models::named_tensors(model), weights.tensors, *directory / kWeights);
  optimizer.updates = number(moments.metadata, "updates");
  return Progress{.step = number(moments.metadata, "step"),
                  .skipped = number(moments.metadata, "skipped"),
                  .tokens = number(moments.metadata, "tokens")};
}

}  // namespace ovq::train
