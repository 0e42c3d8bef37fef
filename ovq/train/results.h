// What an evaluation of a run found, and of what: a line of evaluations.jsonl, for a length, a dictionary size and
// options of the task.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "ovq/train/evaluate.h"

namespace ovq::train {

struct Result {
  int64_t length = 0, centroids = 0;  // 0: the model has no dictionary
  std::optional<double> keep;         // the share of the context that the dictionary keeps; nothing without one
  std::optional<double> asked_keep;   // if `centroids` was chosen for it
  nlohmann::json options = nlohmann::json::object();  // of the task, where they differ from training
  std::string checkpoint;                             // that was evaluated, by its name; in stored lines only
  Evaluation evaluation;
};

nlohmann::json to_json(const Result& result);

// Whether two lines answer the same: length, options and dictionary size, or share to keep if that was asked for.
bool same_question(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace ovq::train
