// The result of one evaluation of a run: a line of evaluations.jsonl, for one length, dictionary size and set of task
// options.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "ovq/train/evaluate.h"

namespace ovq::train {

struct Result {
  int64_t length = 0, centroids = 0;  // 0: the model has no dictionary
  std::optional<double> keep;         // the share of the context that the dictionary keeps; empty without a dictionary
  std::optional<double> asked_keep;   // the share asked for, if `centroids` was derived from it
  nlohmann::json options = nlohmann::json::object();  // of the task, where they differ from training
  std::string checkpoint;                             // name of the evaluated checkpoint; only in stored lines
  Evaluation evaluation;
};

nlohmann::json to_json(const Result& result);

// Whether two results have the same length, task options and dictionary (by size, or by share if that was asked for).
bool same_question(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace ovq::train
