#include "ovq/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace ovq {
namespace {

TEST(Random, IsSplitMix64) {
  // The first outputs for seed 0 in the published reference implementation.
  Random random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(random.next(), 0x06c45d188009454fu);
}

TEST(Random, BelowIsUniform) {
  for (int64_t limit : {1, 2, 3, 7, 10, 64}) {
    Random random(static_cast<uint64_t>(limit));
    std::vector<int64_t> counts(static_cast<size_t>(limit));
    const int64_t draws = 20000 * limit;
    for (int64_t i = 0; i < draws; ++i) {
      const int64_t value = random.below(limit);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, limit);
      ++counts[static_cast<size_t>(value)];
    }
    for (int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 20000, 5 * 142) << limit;  // five deviations
  }
}

TEST(Random, UniformStaysWithinItsRange) {
  Random random(1);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double value = random.uniform();
    ASSERT_GT(value, 0);
    ASSERT_LE(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(Random, ShuffleReachesEveryOrderEquallyOften) {
  std::vector<int> counts(27);
  Random random(3);
  for (int i = 0; i < 60000; ++i) {
    std::vector<int> items = {0, 1, 2};
    random.shuffle(std::span(items));
    ++counts[static_cast<size_t>(items[0] * 9 + items[1] * 3 + items[2])];
  }
  EXPECT_EQ(std::count(counts.begin(), counts.end(), 0), 21);
  for (int count : counts) {
    if (count) {
      EXPECT_NEAR(count, 10000, 500);
    }
  }
}

TEST(HashNumbers, DependsOnEveryNumberAndTheirOrder) {
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 10; ++a) {
    for (uint64_t b = 0; b < 10; ++b) {
      for (uint64_t c = 0; c < 10; ++c) seen.insert(hash_numbers({a, b, c}));
    }
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_NE(hash_numbers({1}), hash_numbers({1, 0}));
}

}  // namespace
}  // namespace ovq
