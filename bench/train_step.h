// `ovq bench step`: a training step of the small presets on recall, as in `ovq train`: time, tokens per second, and a
// time profile.
#pragma once

#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/runner.h"
#include "bench/timing.h"
#include "ovq/train/profile.h"

namespace ovq::bench {

struct TrainStepOptions {
  BenchOptions run;       // quick: only the tiny scale
  int64_t tokens = 8192;  // per step, approximately
  int rounds = 5;
  bool without_mixers = false;  // also models whose mixers return their input
};

struct TrainStepCase {
  std::string name;      // of the preset
  std::string mismatch;  // how the loss differs on another instruction set; such a case is not timed
  int64_t tokens = 0;    // per step
  Timing step;
  Timing without;                 // mixers that return their input; empty: not requested
  train::Profile::Shares shares;  // of a step with its mixers
  double bystander_cores = 0;

  double tokens_per_second() const { return static_cast<double>(tokens) / step.best; }
};

struct TrainStepReport {
  Machine machine;
  double bystander_cores = 0;
  double seconds = 0;
  std::vector<TrainStepCase> cases;

  bool matched() const;
};

// Uses torch's current number of threads. The models take turns.
TrainStepReport run_train_step(const TrainStepOptions& options);

std::string to_table(const TrainStepReport& report);
std::string to_json(const TrainStepReport& report);

}  // namespace ovq::bench
