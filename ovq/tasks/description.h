// What is known of a task by its name and options alone: nothing is read but, for the vocabulary, a tokenizer's model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ovq/tasks/registry.h"

namespace ovq::tasks {

struct TaskDescription {
  std::string name;
  nlohmann::json options;  // as make_task takes them
  Metric metric = Metric::accuracy;
  std::vector<int64_t> train_lengths;          // of the scale
  std::vector<EvaluationSetting> evaluations;  // of the scale

  int64_t vocab() const;  // looked for when asked: options have to be good, a tokenizer's model has to be there
};

// Errors name the closest valid task or scale.
TaskDescription describe_task(const std::string& name, const nlohmann::json& options);

// "accuracy" or "loss", as results and tables have it.
const char* metric_name(Metric metric);

}  // namespace ovq::tasks
