#include "ovq/tasks/mqar.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "ovq/base/error.h"
#include "ovq/base/random.h"

namespace ovq::tasks {

namespace {

constexpr double kAboveZero = 1e-300;  // keeps the logarithm finite if a waiting time is 0

// `count` distinct numbers in [first, first + size), in random order.
std::vector<int32_t> distinct(Random& random, int64_t count, int64_t first, int64_t size) {
  std::vector<int32_t> numbers(static_cast<size_t>(size));
  std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(first));
  for (int64_t i = 0; i < count; ++i) {
    std::swap(numbers[static_cast<size_t>(i)], numbers[static_cast<size_t>(i + random.below(size - i))]);
  }
  numbers.resize(static_cast<size_t>(count));
  return numbers;
}

// Draws `count` slots of [0, slots) without replacement, where slot i has weight (i + 1)^(alpha - 1). Sorting the slots
// by exponential waiting times E / weight gives the same distribution.
std::vector<int64_t> draw_slots(Random& random, int64_t count, int64_t slots, double alpha) {
  std::vector<std::pair<double, int64_t>> waiting(static_cast<size_t>(slots));
  for (int64_t i = 0; i < slots; ++i) {
    const double log_weight = (alpha - 1) * std::log(static_cast<double>(i + 1));
    waiting[static_cast<size_t>(i)] = {std::log(-std::log(random.uniform()) + kAboveZero) - log_weight, i};
  }
  const auto end = waiting.begin() + count;
  std::nth_element(waiting.begin(), end - 1, waiting.end());
  std::sort(waiting.begin(), end);
  std::vector<int64_t> drawn;
  for (auto it = waiting.begin(); it != end; ++it) drawn.push_back(it->second);
  return drawn;
}

}  // namespace

MqarTask::MqarTask(const MqarOptions& options) : options_(options) {
  check(options.vocab >= 8 && options.vocab <= INT32_MAX, "mqar", "vocab is ", options.vocab, "; must be at least 8");
  check(options.pairs >= 0 && options.pairs <= INT32_MAX, "mqar", "pairs is ", options.pairs, "; must be at least 0");
  check(std::isfinite(options.alpha) && options.alpha > 0, "mqar", "alpha is ", options.alpha, "; must be above 0");
}

void MqarTask::fill(const SampleRequest& request, int64_t row, Row out) const {
  Random random(row_seed(request, row));
  const int64_t length = request.length, half = options_.vocab / 2;
  const int64_t pairs = options_.pairs ? options_.pairs : (length / 16) << random.below(3);
  check(pairs <= half - 1, "mqar", "vocab is ", options_.vocab, "; ", pairs, " pairs need at least ", 2 * pairs + 2);
  const std::vector<int32_t> keys = distinct(random, pairs, 1, half - 1);
  const std::vector<int32_t> values = distinct(random, pairs, half, options_.vocab - half);

  if (options_.random_filler) {
    for (int32_t& token : out.tokens) token = static_cast<int32_t>(random.below(options_.vocab));
  }
  const std::vector<int64_t> slots = draw_slots(random, pairs, (length - 2 * pairs) / 2, options_.alpha);
  for (int64_t i = 0; i < pairs; ++i) {
    const auto at = static_cast<size_t>(i);
    out.tokens[2 * at] = keys[at];
    out.tokens[2 * at + 1] = values[at];
    const int64_t query = 2 * pairs + 2 * slots[at];
    out.tokens[static_cast<size_t>(query)] = keys[at];
    out.ask(query, values[at], std::bit_width(static_cast<uint64_t>(query - 2 * i)) - 1);
  }
}

}  // namespace ovq::tasks
