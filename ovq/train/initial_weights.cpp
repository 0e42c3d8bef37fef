#include "ovq/train/initial_weights.h"

#include <stdexcept>

#include "ovq/base/files/mapped_file.h"
#include "ovq/base/files/sha256.h"
#include "ovq/models/weights.h"

namespace ovq::train {
namespace {

std::filesystem::path weights_file(const std::filesystem::path& directory) { return directory / "model.safetensors"; }

void check_unchanged(const InitialWeights& weights, const std::string& now) {
  if (now == weights.sha256) return;
  throw std::runtime_error(weights_file(weights.path).string() + " has the SHA-256 " + now + "; the run started from " +
                           weights.sha256);
}

}  // namespace

InitialWeights find_initial_weights(const InitialWeights& asked, const Warn& warn) {
  const std::filesystem::path directory = model_directory(asked.path, warn);
  if (!std::filesystem::exists(weights_file(directory)))
    throw std::runtime_error(asked.path +
                             " is neither a model nor a run: it has no model.safetensors and no checkpoints");
  const InitialWeights found{.path = std::filesystem::absolute(directory).lexically_normal().string(),
                             .sha256 = files::sha256(files::MappedFile(weights_file(directory)).bytes())};
  if (!asked.sha256.empty()) check_unchanged({found.path, asked.sha256}, found.sha256);
  return found;
}

void load_initial_weights(models::LanguageModel& model, const InitialWeights& found) {
  const std::filesystem::path file = weights_file(found.path);
  check_unchanged(found, files::sha256(files::MappedFile(file).bytes()));
  models::assign_tensors(models::named_tensors(model), models::load_tensors(file).tensors, file);
}

}  // namespace ovq::train
