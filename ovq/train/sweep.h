// `ovq eval`: a trained model at several lengths, and at each of them with several dictionary sizes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ovq/train/run.h"

namespace ovq::train {

struct SweepOptions {
  std::vector<int64_t> lengths;    // empty: the lengths that the task's scale is tested at
  std::vector<int64_t> centroids;  // dictionary sizes
  std::vector<double> keeps;       // also sizes that keep these shares of every length; neither: the model's own size
  EvaluateOptions evaluate;        // its length and seed are ignored
};

struct Sweep {
  std::string model, task, checkpoint;
  std::vector<Result> results;  // by length, then by dictionary size
  std::string not_stored;       // why results could not be stored in the run; empty: all were
};

// Stores every result in the run as soon as it is measured and goes on if that fails. std::invalid_argument for
// dictionary sizes if the model has no dictionary, and for lengths that the task cannot have. Restores the model's own
// dictionary sizes.
Sweep sweep(const Run& run, const TrainedModel& trained, const SweepOptions& options);

std::string to_table(const Sweep& sweep);
nlohmann::json to_json(const Sweep& sweep);

}  // namespace ovq::train
