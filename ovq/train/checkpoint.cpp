#include "ovq/train/checkpoint.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ovq/models/files/durable.h"
#include "ovq/models/files/numbered_directories.h"
#include "ovq/models/weights.h"

namespace ovq::train {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kConfigKey = "ovq.config";

// The checkpoint belongs to another model: no older one can help.
struct OtherModel : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How many centroids there may be is no part of what a model is.
std::string identity(models::ModelConfig config) {
  config.set_centroids(1);
  return models::to_json(config).dump();
}

int64_t number(const files::Metadata& metadata, const std::string& key) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) throw std::runtime_error("no " + key);
  return std::stoll(at->second);
}

models::LoadedTensors load_sound(const std::filesystem::path& file) {
  models::LoadedTensors loaded = models::load_tensors(file);
  if (loaded.integrity != files::Integrity::verified) throw std::runtime_error(file.string() + " has no checksum");
  return loaded;
}

Progress load_from(const std::filesystem::path& directory, models::LanguageModel& model, AdamW& optimizer) {
  const models::LoadedTensors weights = load_sound(directory / kWeights);
  const models::LoadedTensors moments = load_sound(directory / kOptimizer);
  const auto config = weights.metadata.find(kConfigKey);
  if (config == weights.metadata.end() || config->second != identity(model.config())) {
    throw OtherModel(directory.string() + " is a checkpoint of another model; the run's own is described in run.json");
  }
  Progress progress{.step = number(moments.metadata, "step"),
                    .skipped = number(moments.metadata, "skipped"),
                    .tokens = number(moments.metadata, "tokens")};
  const int64_t updates = number(moments.metadata, "updates");
  models::assign_tensors(optimizer.state(), moments.tensors, directory / kOptimizer);
  models::assign_tensors(models::named_tensors(model), weights.tensors, directory / kWeights);
  optimizer.set_steps(updates);
  return progress;
}

}  // namespace

std::filesystem::path checkpoint_directory(const std::filesystem::path& run) { return run / "checkpoints"; }

void save_checkpoint(const std::filesystem::path& run, const models::LanguageModel& model, const AdamW& optimizer,
                     const Progress& progress, int64_t keep) {
  const std::filesystem::path directory = checkpoint_directory(run);
  std::filesystem::create_directories(directory);
  files::write_directory_durably(
      files::numbered_path(directory, kPrefix, progress.step),
      [&](const std::filesystem::path& aside) {
        files::write_file_durably(aside / "config.json", models::to_json(model.config()).dump(2) + "\n");
        models::save_tensors(aside / kWeights, models::named_tensors(model), {{kConfigKey, identity(model.config())}});
        models::save_tensors(aside / kOptimizer, optimizer.state(),
                             {{"step", std::to_string(progress.step)},
                              {"skipped", std::to_string(progress.skipped)},
                              {"tokens", std::to_string(progress.tokens)},
                              {"updates", std::to_string(optimizer.steps())}});
      },
      files::IfExists::replace);
  files::keep_last(directory, kPrefix, keep);
}

std::optional<Progress> load_checkpoint(const std::filesystem::path& run, models::LanguageModel& model,
                                        AdamW& optimizer, const std::function<void(const std::string&)>& warn) {
  const std::filesystem::path directory = checkpoint_directory(run);
  if (std::filesystem::is_directory(directory)) files::remove_stale_parts(directory);
  for (const files::NumberedDirectory& candidate : files::latest_first(directory, kPrefix)) {
    try {
      return load_from(candidate.path, model, optimizer);
    } catch (const OtherModel&) {
      throw;
    } catch (const std::exception& error) {
      if (warn) warn("skipping a damaged checkpoint: " + std::string(error.what()));
    }
  }
  return std::nullopt;
}

std::filesystem::path newest_checkpoint(const std::filesystem::path& run) {
  const auto all = files::latest_first(checkpoint_directory(run), kPrefix);
  if (all.empty()) throw std::runtime_error(run.string() + " has no checkpoint");
  return all.front().path;
}

}  // namespace ovq::train
