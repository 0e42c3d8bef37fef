// `ovq eval`: a trained model at several lengths, and at each of them with several dictionary sizes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ovq/train/run.h"

namespace ovq::train {

struct SweepOptions {
  std::vector<int64_t> lengths;    // empty: what the task's scale is tested on
  std::vector<int64_t> centroids;  // dictionary sizes
  std::vector<double> keeps;       // and sizes that keep these shares of every length; neither: the model's own size
  EvaluateOptions evaluate;        // its length and seed are not asked
};

struct Sweep {
  std::string model, task, checkpoint;
  std::vector<Result> results;  // lengths in order, at each of them the sizes in order
  std::string not_stored;       // why the run has not all of them; empty: it has
};

// Stores every result in the run as soon as it is there; goes on if that fails. Dictionary sizes of a model that has
// none, and lengths that the task cannot have, are a std::invalid_argument. The model has its own dictionary sizes
// again afterwards.
Sweep sweep(const Run& run, const TrainedModel& trained, const SweepOptions& options);

std::string to_table(const Sweep& sweep);
nlohmann::json to_json(const Sweep& sweep);

}  // namespace ovq::train
