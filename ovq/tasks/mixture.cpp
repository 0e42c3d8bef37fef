#include "ovq/tasks/mixture.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "ovq/base/error.h"

namespace ovq::tasks {
namespace {

// 0 ... count - 1 sorted by their bits in reverse order: 0, 4, 2, 6, 1, 5, 3, 7.
std::vector<size_t> bit_reversed(size_t count) {
  std::vector<size_t> order = {0};
  for (size_t bit = std::bit_ceil(count) / 2; bit > 0; bit /= 2) {
    const size_t known = order.size();
    for (size_t i = 0; i < known; ++i) order.push_back(order[i] + bit);
  }
  std::erase_if(order, [&](size_t part) { return part >= count; });
  return order;
}

}  // namespace

std::vector<int64_t> halved_lengths(int64_t longest, int64_t count) {
  check(count >= 1 && count < 62 && longest >= int64_t{1} << (count - 1), "mixture", "longest is ", longest,
        "; cannot be halved ", count - 1, " times");
  std::vector<int64_t> lengths;
  for (int64_t shift = count - 1; shift >= 0; --shift) lengths.push_back(longest >> shift);
  return lengths;
}

std::vector<StepShape> step_shapes(const Task& task, const LengthMixture& mixture) {
  check(!mixture.lengths.empty(), "mixture", "lengths is empty; must have at least one");
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

std::vector<std::vector<RowRange>> rows_of_parts(const Task& task, const std::vector<StepShape>& shapes,
                                                 int64_t parts) {
  check(parts >= 1, "mixture", "parts is ", parts, "; must be at least 1");
  const auto count = static_cast<size_t>(parts);
  std::vector<size_t> longest_first(shapes.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return shapes[a].length > shapes[b].length; });
  const std::vector<size_t> far_apart = bit_reversed(count);
  std::vector<int64_t> tokens(count);
  std::vector<std::vector<RowRange>> ranges(count, std::vector<RowRange>(shapes.size()));
  for (const size_t shape : longest_first) {
    std::vector<size_t> fewest_first = far_apart;
    std::stable_sort(fewest_first.begin(), fewest_first.end(),
                     [&](size_t a, size_t b) { return tokens[a] < tokens[b]; });
    for (size_t i = 0; i < count; ++i) {
      const bool one_more = static_cast<int64_t>(i) < shapes[shape].rows % parts;
      ranges[fewest_first[i]][shape].count = shapes[shape].rows / parts + (one_more ? 1 : 0);
    }
    const int64_t row_length = task.row_length(shapes[shape].length, Split::train);
    int64_t next = 0;
    for (size_t part = 0; part < count; ++part) {
      ranges[part][shape].first = next;
      next += ranges[part][shape].count;
      tokens[part] += ranges[part][shape].count * row_length;
    }
  }
  return ranges;
}

}  // namespace ovq::tasks
