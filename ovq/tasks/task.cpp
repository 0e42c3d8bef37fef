#include "ovq/tasks/task.h"

#include "ovq/base/error.h"
#include "ovq/base/random.h"

namespace ovq::tasks {

int64_t Task::test_rows(int64_t /*length*/) const { return 0; }

uint64_t row_seed(const SampleRequest& request, int64_t row) {
  constexpr uint64_t kUnused = 0;  // part of the seeds of all published results
  return hash_numbers({request.seed, static_cast<uint64_t>(request.split), static_cast<uint64_t>(request.step), kUnused,
                       static_cast<uint64_t>(request.length), static_cast<uint64_t>(row)});
}

Batch Task::sample(const SampleRequest& request) const {
  const std::string op = name();
  check(request.rows >= 1, op.c_str(), "rows is ", request.rows, "; must be at least 1");
  check(request.step >= 0, op.c_str(), "step is ", request.step, "; must not be negative");
  const int64_t first_row = request.first_row, left = request.rows - first_row;
  check(first_row >= 0 && left >= 1 && request.row_count >= 0 && request.row_count <= left, op.c_str(), "rows from ",
        first_row, " on, ", request.row_count, " of them, exceed the batch's ", request.rows);
  check(request.length >= min_length(), op.c_str(), "length is ", request.length, "; must be at least ", min_length());
  constexpr int64_t kMaxTokens = int64_t{1} << 32;
  check(request.length <= kMaxTokens / 4 && request.rows <= kMaxTokens / row_length(request.length, request.split),
        op.c_str(), request.rows, " rows of length ", request.length, " exceed the limit of ", kMaxTokens, " tokens");

  Batch batch{.rows = request.row_count == 0 ? left : request.row_count,
              .length = row_length(request.length, request.split)};
  const auto size = static_cast<size_t>(batch.rows * batch.length);
  batch.tokens.assign(size, 0);
  batch.targets.assign(size, kNoTarget);
  batch.groups.assign(size, kNoGroup);
  const auto length = static_cast<size_t>(batch.length);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const size_t start = static_cast<size_t>(row) * length;
    fill(request, first_row + row,
         {.tokens = std::span(batch.tokens).subspan(start, length),
          .targets = std::span(batch.targets).subspan(start, length),
          .groups = std::span(batch.groups).subspan(start, length)});
  }
  return batch;
}

}  // namespace ovq::tasks
