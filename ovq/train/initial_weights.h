// Weights a run starts from, instead of random ones: those of a model's directory, or of another run's newest sound
// checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "ovq/models/language_model.h"
#include "ovq/train/checkpoint.h"

namespace ovq::train {

struct InitialWeights {
  std::string path;    // empty: none. A model's directory or a run; once found, the directory that holds the weights
  std::string sha256;  // of its model.safetensors; empty: not known yet

  bool operator==(const InitialWeights&) const = default;
};

// Where they are, absolute, and what they are. std::runtime_error if there are none, or if they are not those of
// asked.sha256.
InitialWeights find_initial_weights(const InitialWeights& asked, const Warn& warn);

// Names and shapes must be the model's; what no weight depends on (centroids, windows, ...) may differ. The error,
// std::runtime_error, names the first that differs, or says that the file is no longer the one that was found.
void load_initial_weights(models::LanguageModel& model, const InitialWeights& found);

}  // namespace ovq::train
