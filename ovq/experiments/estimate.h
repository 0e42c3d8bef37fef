// How long a run will take: its floating point operations (models/inspect.h) at the speed of a core.
#pragma once

#include "ovq/experiments/experiment_set.h"

namespace ovq::experiments {

struct RunEstimate {
  double training = 0, evaluation = 0;  // seconds of one core
  int64_t tokens = 0;                   // in training

  double total() const { return training + evaluation; }
};

RunEstimate estimate_run(const Experiment& experiment, const train::RunOptions& options);

}  // namespace ovq::experiments
