#include "ovq/tasks/mixture.h"

#include <algorithm>

#include "ovq/base/error.h"

namespace ovq::tasks {

std::vector<int64_t> halved_lengths(int64_t longest, int64_t count) {
  check(count >= 1 && count < 62 && longest >= int64_t{1} << (count - 1), "mixture", "longest is ", longest,
        "; cannot be halved ", count - 1, " times");
  std::vector<int64_t> lengths;
  for (int64_t shift = count - 1; shift >= 0; --shift) lengths.push_back(longest >> shift);
  return lengths;
}

std::vector<StepShape> step_shapes(const Task& task, const LengthMixture& mixture) {
  check(!mixture.lengths.empty(), "mixture", "has no lengths");
  check(mixture.tokens_per_step >= 1, "mixture", "tokens_per_step is ", mixture.tokens_per_step,
        "; must be at least 1");
  const int64_t share = mixture.tokens_per_step / static_cast<int64_t>(mixture.lengths.size());
  std::vector<StepShape> shapes;
  for (const int64_t length : mixture.lengths) {
    check(length >= task.min_length(), "mixture", "length is ", length, "; ", task.name(), " needs at least ",
          task.min_length());
    const int64_t rows = share / task.row_length(length, Split::train);
    shapes.push_back({.length = length, .rows = std::max<int64_t>(1, rows)});
  }
  return shapes;
}

}  // namespace ovq::tasks
