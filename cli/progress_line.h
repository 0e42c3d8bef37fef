// Progress of a training run: one updated line on a terminal, otherwise a line from time to time.
#pragma once

#include <chrono>
#include <string>

#include "cli/console.h"
#include "ovq/train/trainer.h"

namespace ovq::cli {

class ProgressLine {
 public:
  ProgressLine(int64_t steps, int64_t first_step);

  void step(const train::StepReport& report);
  void message(const std::string& line);  // above the progress line
  void finish();

 private:
  std::string line(const train::StepReport& report) const;

  MovingLine moving_;
  bool terminal_;
  int64_t steps_, first_step_;
  std::chrono::steady_clock::time_point start_, shown_;
  double seconds_ = 0;  // per step, smoothed
  double tokens_per_second_ = 0;
};

}  // namespace ovq::cli
