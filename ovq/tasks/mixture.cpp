#include "ovq/tasks/mixture.h"

#include <algorithm>
#include <numeric>

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

std::vector<RowRange> rows_of_part(const Task& task, const std::vector<StepShape>& shapes, int64_t part,
                                   int64_t parts) {
  check(part >= 0 && part < parts, "mixture", "part is ", part, "; must be within 0 and ", parts - 1);
  std::vector<size_t> longest_first(shapes.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return shapes[a].length > shapes[b].length; });
  std::vector<int64_t> tokens(static_cast<size_t>(parts));
  std::vector<RowRange> ranges(shapes.size());
  for (const size_t shape : longest_first) {
    std::vector<int64_t> counts(tokens.size(), shapes[shape].rows / parts);
    std::vector<size_t> fewest_first(tokens.size());
    std::iota(fewest_first.begin(), fewest_first.end(), size_t{0});
    std::stable_sort(fewest_first.begin(), fewest_first.end(),
                     [&](size_t a, size_t b) { return tokens[a] < tokens[b]; });
    for (int64_t left = 0; left < shapes[shape].rows % parts; ++left) ++counts[fewest_first[static_cast<size_t>(left)]];
    const int64_t row_length = task.row_length(shapes[shape].length, Split::train);
    for (size_t i = 0; i < counts.size(); ++i) tokens[i] += counts[i] * row_length;
    const auto own = counts.begin() + part;
    ranges[shape] = {.first = std::accumulate(counts.begin(), own, int64_t{0}), .count = *own};
  }
  return ranges;
}

}  // namespace ovq::tasks
