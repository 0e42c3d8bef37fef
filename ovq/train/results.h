// What evaluations of a run found: evaluations.jsonl in its directory, a line per length, dictionary size and options.
#pragma once

#include <optional>
#include <vector>

#include "ovq/train/evaluate.h"
#include "ovq/train/run_directory.h"

namespace ovq::train {

struct Result {
  int64_t length = 0, centroids = 0;  // 0: the model has no dictionary
  std::optional<double> keep;         // the share of the context that the dictionary keeps; nothing without one
  std::optional<double> asked_keep;   // if `centroids` was chosen for it
  json options = json::object();      // of the task, where they differ from training
  Evaluation evaluation;
};

json to_json(const Result& result);

// A result for the same length, options and dictionary size, or share to keep if that was asked for, is replaced.
void store_result(const RunDirectory& run, const Result& result);
std::vector<json> read_results(const RunDirectory& run);

}  // namespace ovq::train
