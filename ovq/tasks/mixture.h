// Which context lengths a training step has: short and long ones together. What the short ones teach early carries over
// to the long ones.
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

// What every training step consists of: rows of each length, as many as come closest to, but not over,
// an equal share of tokens_per_step, at least one.
std::vector<StepShape> step_shapes(const Task& task, const LengthMixture& mixture);

// Consecutive rows of a batch.
struct RowRange {
  int64_t first = 0, count = 0;
};

// Which rows of each shape are in each of the parts of a step: [part][shape]. Every length is shared out evenly; the
// rows that are left over go to the parts with the fewest tokens so far, those of long rows first, of equals to parts
// far apart: consecutive parts together have their share, too.
std::vector<std::vector<RowRange>> rows_of_parts(const Task& task, const std::vector<StepShape>& shapes, int64_t parts);

}  // namespace ovq::tasks
