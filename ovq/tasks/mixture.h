// The context lengths of a training step: short and long together, because what is learned on short contexts early
// carries over to long ones.
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

// The composition of every training step: for each length as many rows as fit into an equal share of tokens_per_step,
// at least one.
std::vector<StepShape> step_shapes(const Task& task, const LengthMixture& mixture);

// Consecutive rows of a batch.
struct RowRange {
  int64_t first = 0, count = 0;
};

// The rows of each shape in each part of a step: [part][shape]. Every length is divided evenly. Left-over rows, those
// of long rows first, go to the part with the fewest tokens so far; ties go to parts far apart, so that consecutive
// parts together are balanced too.
std::vector<std::vector<RowRange>> rows_of_parts(const Task& task, const std::vector<StepShape>& shapes, int64_t parts);

}  // namespace ovq::tasks
