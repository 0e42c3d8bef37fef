#include "ovq/tasks/mqar.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using test::error_of;
using test::row_of;

TEST(Mqar, PairsAloneAnswerEveryTarget) {
  for (bool random_filler : {true, false}) {
    const MqarTask task({.vocab = 64, .pairs = 9, .random_filler = random_filler});
    for (int64_t length : {36, 37, 64, 200}) {
      const SampleRequest request{.rows = 5, .length = length};
      const Batch batch = task.sample(request);
      EXPECT_EQ(test::expect_sound(task, request, batch), 5 * 9);
      for (int64_t row = 0; row < batch.rows; ++row) {
        const auto tokens = row_of(batch, batch.tokens, row), targets = row_of(batch, batch.targets, row);
        const auto groups = row_of(batch, batch.groups, row);
        std::map<int32_t, size_t> key_at;
        std::set<int32_t> values;
        for (size_t i = 0; i < 18; i += 2) {
          key_at[tokens[i]] = i;
          values.insert(tokens[i + 1]);
          EXPECT_GE(tokens[i], 1);
          EXPECT_LT(tokens[i], 32);
          EXPECT_GE(tokens[i + 1], 32);
        }
        EXPECT_EQ(key_at.size(), 9u);
        EXPECT_EQ(values.size(), 9u);
        for (size_t i = 0; i < tokens.size(); ++i) {
          if (targets[i] == kNoTarget) {
            if (i >= 18 && !random_filler) {
              EXPECT_EQ(tokens[i], 0);
            }
            continue;
          }
          EXPECT_GE(i, 18u);
          const size_t key = key_at.at(tokens[i]);
          EXPECT_EQ(targets[i], tokens[key + 1]);
          EXPECT_EQ(groups[i], std::bit_width(i - key) - 1);
        }
      }
    }
  }
}

// Share of first pairs asked for in slot 0, of 8 slots.
double share_in_first_slot(double alpha) {
  const MqarTask task({.vocab = 64, .pairs = 1, .alpha = alpha});
  const int64_t rows = 4000;
  const Batch batch = task.sample({.rows = rows, .length = 18});
  int64_t first = 0;
  for (int64_t row = 0; row < rows; ++row) first += row_of(batch, batch.targets, row)[2] != kNoTarget;
  return static_cast<double>(first) / static_cast<double>(rows);
}

TEST(Mqar, GapsFollowThePowerLaw) {
  EXPECT_NEAR(share_in_first_slot(1), 1.0 / 8, 0.03);
  double sum = 0;
  for (int i = 1; i <= 8; ++i) sum += std::pow(i, 0.01 - 1);
  EXPECT_NEAR(share_in_first_slot(0.01), 1 / sum, 0.04);
}

TEST(Mqar, PairsAreDrawnIfNotGiven) {
  const MqarTask task({.vocab = 256, .random_filler = false});
  const Batch batch = task.sample({.rows = 60, .length = 64});
  std::set<int64_t> counts;
  for (int64_t row = 0; row < batch.rows; ++row) {
    int64_t asked = 0;
    for (int32_t target : row_of(batch, batch.targets, row)) asked += target != kNoTarget;
    counts.insert(asked);
  }
  EXPECT_EQ(counts, (std::set<int64_t>{4, 8, 16}));
}

TEST(Mqar, BadOptions) {
  const auto error = [](const MqarOptions& options) {
    return error_of([&] { MqarTask(options).sample({.length = 64}); });
  };
  EXPECT_EQ(error({.vocab = 7}), "[mqar] vocab is 7; must be at least 8");
  EXPECT_EQ(error({.pairs = -1}), "[mqar] pairs is -1; must be at least 0");
  EXPECT_EQ(error({.alpha = 0}), "[mqar] alpha is 0; must be above 0");
  EXPECT_EQ(error({.pairs = 17}), "[mqar] length is 64; must be at least 68");
  EXPECT_EQ(error({.vocab = 16, .pairs = 8}), "[mqar] vocab is 16; 8 pairs need at least 18");
}

}  // namespace
}  // namespace ovq::tasks
