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
  bool plain = false;  // also with composed mixers, and with none
};

struct TrainStepCase {
  std::string name;               // of the preset
  std::string mismatch;           // how the losses of fused and composed differ; such a case is not timed
  int64_t tokens = 0;             // per step
  Timing fused, plain, without;   // without: mixers that return their input. Empty: not requested
  train::Profile::Shares shares;  // of a step with the fused mixers
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

// Uses torch's current number of threads. The models take turns.
TrainStepReport run_train_step(const TrainStepOptions& options);

std::string to_table(const TrainStepReport& report);
std::string to_json(const TrainStepReport& report);

}  // namespace ovq::bench
