// What evaluations of a run found: evaluations.jsonl in its directory, a line per length, dictionary size and options.
#pragma once

#include <optional>
#include <vector>

#include "ovq/train/evaluate.h"
#include "ovq/train/run_directory.h"

namespace ovq::train {

struct Result {
  int64_t length = 0, centroids = 0;  // 0: the model has no dictionary
  json options = json::object();      // of the task, where they differ from training
  Evaluation evaluation;
};

json to_json(const Result& result);

// A result for the same length, dictionary size and options is replaced.
void store_result(const RunDirectory& run, const Result& result);
std::vector<json> read_results(const RunDirectory& run);

// The dictionary size of a configuration; nothing without OVQ-attention.
std::optional<int64_t> centroids_of(const models::ModelConfig& config);

}  // namespace ovq::train
