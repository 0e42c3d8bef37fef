// Initial weights of a run that are not random: from a model directory, or from another run's newest sound checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "ovq/models/language_model.h"
#include "ovq/train/checkpoint.h"

namespace ovq::train {

struct InitialWeights {
  std::string path;    // empty: none. A model directory or a run; once found, the directory that holds the weights
  std::string sha256;  // of its model.safetensors; empty: not known yet

  bool operator==(const InitialWeights&) const = default;
};

// Returns the absolute directory of the weights and their hash. std::runtime_error if there are none, or if they do not
// match asked.sha256.
InitialWeights find_initial_weights(const InitialWeights& asked, const Warn& warn);

// Names and shapes must match the model's. Options that no weight depends on (centroids, windows, ...) may differ.
// std::runtime_error names the first mismatch, or says that the file has changed since it was found.
void load_initial_weights(models::LanguageModel& model, const InitialWeights& found);

}  // namespace ovq::train
