// Tasks by name, and their sizes by scale: `tiny` for a demo, `small` for experiments on a few cores, `paper` for the
// paper's own.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ovq/tasks/task.h"

namespace ovq::tasks {

// What a trained model is tested on: a length and, where the test differs from training, options over those of the
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

// The scale among options as make_task takes them; tiny if there is none.
std::string scale_of(const std::string& task, const nlohmann::json& options);

// The options that make_task would use: those of the preset `options["scale"]` (tiny if not given), overridden by the
// rest.
nlohmann::json task_options(const std::string& task, const nlohmann::json& options);

// The options of a task, as FieldDescriber (base/json_fields.h) has them.
nlohmann::json describe_task(const std::string& task);

// What a task is scored by, known by its name alone.
Metric metric_of(const std::string& task);

// Reads no data: that is done by the first sample that needs it. Errors name the closest valid task, scale or option.
std::unique_ptr<Task> make_task(const std::string& name, const nlohmann::json& options = nlohmann::json::object());

}  // namespace ovq::tasks
