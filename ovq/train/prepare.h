// Checks a run before it begins, so that errors are found before anything is written.
#pragma once

#include <memory>

#include "ovq/train/run.h"

namespace ovq::train {

struct PreparedRun {
  RunOptions options;  // resolved
  std::shared_ptr<const tasks::Task> task;
};

// `options` as in run.json, over the defaults. Reads everything that training will read: rows of every length and
// initial weights. Wrong options are a std::invalid_argument, wrong files a std::runtime_error.
PreparedRun prepare_run(const json& options, const Warn& warn);

}  // namespace ovq::train
