#include "ovq/tasks/mixture.h"

#include <algorithm>

#include "ovq/kernels/error.h"
#include "ovq/tasks/random.h"

namespace ovq::tasks {

using kernels::check;

std::vector<int64_t> halved_lengths(int64_t longest, int64_t count) {
  check(count >= 1 && count < 62 && longest >= int64_t{1} << (count - 1), "mixture", "longest is ", longest,
        "; cannot be halved ", count - 1, " times");
  std::vector<int64_t> lengths;
  for (int64_t shift = count - 1; shift >= 0; --shift) lengths.push_back(longest >> shift);
  return lengths;
}

StepShape step_shape(const Task& task, const LengthMixture& mixture, uint64_t seed, int64_t step) {
  check(!mixture.lengths.empty(), "mixture", "has no lengths");
  check(mixture.tokens_per_step >= 1, "mixture", "tokens_per_step is ", mixture.tokens_per_step,
        "; must be at least 1");
  check(step >= 0, "mixture", "step is ", step, "; must not be negative");
  std::vector<int64_t> lengths = mixture.lengths;
  const auto count = static_cast<int64_t>(lengths.size());
  Random random(hash_numbers({seed, static_cast<uint64_t>(step / count)}));
  random.shuffle(std::span(lengths));
  const int64_t length = lengths[static_cast<size_t>(step % count)];
  check(length >= task.min_length(), "mixture", "length is ", length, "; ", task.name(), " needs at least ",
        task.min_length());
  return {.length = length,
          .rows = std::max<int64_t>(1, mixture.tokens_per_step / task.row_length(length, Split::train))};
}

}  // namespace ovq::tasks
