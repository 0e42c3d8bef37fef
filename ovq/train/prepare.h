// A run before it begins: what is wrong with it is found before anything is written.
#pragma once

#include <memory>

#include "ovq/train/run.h"

namespace ovq::train {

struct PreparedRun {
  RunOptions options;  // resolved
  std::shared_ptr<const tasks::Task> task;
};

// From options as run.json has them, over the defaults. Reads what training will read: rows of every length, weights to
// start from. What is wrong with the options is a std::invalid_argument, with files a std::runtime_error.
PreparedRun prepare_run(const json& options, const Warn& warn);

}  // namespace ovq::train
