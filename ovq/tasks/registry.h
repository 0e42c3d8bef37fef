// Tasks by name, and their sizes by scale: `tiny` for a demo, `small` for experiments on a few cores, `paper` for the
// sizes of the paper.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ovq/tasks/task.h"

namespace ovq::tasks {

// A test of a trained model: a length and, where the test differs from training, options that override those of the
// preset.
struct EvaluationSetting {
  int64_t length = 0;
  nlohmann::json options = nlohmann::json::object();
};

struct Preset {
  nlohmann::json options;
  std::vector<int64_t> train_lengths;
  std::vector<EvaluationSetting> evaluations;
};

std::vector<std::string> task_names();
std::vector<std::string> scale_names();

Preset preset(const std::string& task, const std::string& scale);

// The scale in options for make_task; tiny if there is none.
std::string scale_of(const std::string& task, const nlohmann::json& options);

// The options that make_task would use: the preset `options["scale"]` (tiny if absent), overridden by the rest.
nlohmann::json task_options(const std::string& task, const nlohmann::json& options);

// The options of a task in the form of FieldDescriber (base/json_fields.h).
nlohmann::json describe_task(const std::string& task);

// The metric of a task, known from its name alone.
Metric metric_of(const std::string& task);

// Reads no data; the first sample that needs data reads it. Errors suggest the closest valid task, scale or option.
std::unique_ptr<Task> make_task(const std::string& name, const nlohmann::json& options = nlohmann::json::object());

}  // namespace ovq::tasks
