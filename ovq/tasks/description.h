// The properties of a task that follow from its name and options without its data; the vocabulary may need a
// tokenizer's model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ovq/tasks/registry.h"

namespace ovq::tasks {

struct TaskDescription {
  std::string name;
  nlohmann::json options;  // as for make_task
  Metric metric = Metric::accuracy;
  std::vector<int64_t> train_lengths;          // of the scale
  std::vector<EvaluationSetting> evaluations;  // of the scale

  int64_t vocab() const;  // determined when called: the options must be valid and the tokenizer's model must exist
};

// An unknown task or scale is an error that suggests the closest.
TaskDescription describe_task(const std::string& name, const nlohmann::json& options);

// "accuracy" or "loss", as in results and tables.
const char* metric_name(Metric metric);

}  // namespace ovq::tasks
