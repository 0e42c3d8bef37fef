// `ovq bench step`: a training step of the small presets on recall, as `ovq train` makes it: time, tokens per second,
// and where the time goes.
#pragma once

#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/runner.h"
#include "bench/timing.h"
#include "ovq/train/profile.h"

namespace ovq::bench {

struct TrainStepOptions {
  BenchOptions run;       // quick: the tiny scale only
  int64_t tokens = 8192;  // of a step, about
  int rounds = 5;
  bool plain = false;  // also with the composed mixers, and without any
};

struct TrainStepCase {
  std::string name;               // of the preset
  std::string mismatch;           // how the losses of fused and composed differed; such a case is not timed
  int64_t tokens = 0;             // of a step
  Timing fused, plain, without;   // without: mixers that hand on their input. Empty: not asked for
  train::Profile::Shares shares;  // of a step with the fused ones
  double bystander_cores = 0;

  double tokens_per_second() const { return static_cast<double>(tokens) / fused.best; }
};

struct TrainStepReport {
  Machine machine;
  double bystander_cores = 0;
  double seconds = 0;
  std::vector<TrainStepCase> cases;

  bool matched() const;
};

// With the threads torch has been given. The models take turns.
TrainStepReport run_train_step(const TrainStepOptions& options);

std::string to_table(const TrainStepReport& report);
std::string to_json(const TrainStepReport& report);

}  // namespace ovq::bench
