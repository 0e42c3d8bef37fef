// Which context length a training step has: short and long ones from the first step on, equal tokens per step.
#pragma once

#include <cstdint>
#include <vector>

#include "ovq/tasks/task.h"

namespace ovq::tasks {

struct LengthMixture {
  std::vector<int64_t> lengths;
  int64_t tokens_per_step = 8192;
};

struct StepShape {
  int64_t length = 0, rows = 0;  // as in SampleRequest
};

// {longest / 8, longest / 4, longest / 2, longest}
std::vector<int64_t> halved_lengths(int64_t longest, int64_t count = 4);

// Length and rows of training step `step`; rows are as many as come closest to, but not over, tokens_per_step, at least
// one. Of every lengths.size() steps in a row (counted from step 0) each has another length, in an order drawn from the
// seed.
StepShape step_shape(const Task& task, const LengthMixture& mixture, uint64_t seed, int64_t step);

}  // namespace ovq::tasks
