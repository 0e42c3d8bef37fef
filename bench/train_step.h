// A training step of a model on the fused mixers against the same on the plain ones, and without any.
#pragma once

#include <string>
#include <vector>

#include "bench/machine.h"

namespace ovq::bench {

struct TrainStepCase {
  int64_t length = 0, rows = 0;
  double fused = 0, plain = 0, without = 0;  // best seconds of a step; `without`: mixers that hand on their input
};

struct TrainStepOptions {
  std::string preset = "small/sw-ovq";
  std::vector<int64_t> lengths = {256, 1024};
  int64_t tokens = 8192;  // of a step
  int rounds = 5;
};

struct TrainStepReport {
  Machine machine;
  std::string preset;
  int rounds = 0;
  std::vector<TrainStepCase> cases;
};

// First checks that both give the same loss. Throws std::runtime_error if not.
TrainStepReport run_train_step(const TrainStepOptions& options);

std::string to_table(const TrainStepReport& report);
std::string to_json(const TrainStepReport& report);

}  // namespace ovq::bench
