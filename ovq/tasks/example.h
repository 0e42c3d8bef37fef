// One row of a task, for display.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ovq/tasks/task.h"

namespace ovq::tasks {

struct ExampleOptions {
  std::string task, scale = "tiny";
  nlohmann::json options = nlohmann::json::object();  // override those of the scale
  int64_t length = 0;                                 // 0: the shortest training length
  int64_t step = 0;
  uint64_t seed = 0;
  Split split = Split::train;
};

struct Example {
  std::unique_ptr<Task> task;
  std::string scale;
  Batch batch;
};

Example draw_example(const ExampleOptions& options);

std::string to_text(const Example& example);
nlohmann::json to_json(const Example& example);

}  // namespace ovq::tasks
