#include "ovq/tasks/mixture.h"

#include <gtest/gtest.h>

#include <set>

#include "ovq/tasks/icl.h"
#include "ovq/tasks/recall.h"
#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using test::error_of;

TEST(Mixture, HalvedLengths) {
  EXPECT_EQ(halved_lengths(128), (std::vector<int64_t>{16, 32, 64, 128}));
  EXPECT_EQ(halved_lengths(100, 1), (std::vector<int64_t>{100}));
  EXPECT_EQ(error_of([] { halved_lengths(7); }), "[mixture] longest is 7; cannot be halved 3 times");
}

TEST(Mixture, EveryLengthOncePerRoundInRandomOrder) {
  const IclTask task({});
  const LengthMixture mixture{.lengths = halved_lengths(128), .tokens_per_step = 1024};
  std::set<std::vector<int64_t>> orders;
  for (int64_t round = 0; round < 50; ++round) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 4; ++i) {
      const StepShape shape = step_shape(task, mixture, 1, 4 * round + i);
      EXPECT_EQ(shape.rows * shape.length, 1024);
      order.push_back(shape.length);
    }
    orders.insert(order);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 4u);
  }
  EXPECT_GT(orders.size(), 10u);
}

TEST(Mixture, IsAFunctionOfSeedAndStep) {
  const IclTask task({});
  const LengthMixture mixture{.lengths = halved_lengths(128)};
  int64_t differences = 0;
  for (int64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(step_shape(task, mixture, 1, step).length, step_shape(task, mixture, 1, step).length);
    differences += step_shape(task, mixture, 1, step).length != step_shape(task, mixture, 2, step).length;
  }
  EXPECT_GT(differences, 0);
}

TEST(Mixture, CountsTheQuerySection) {
  const RecallTask task({});
  const LengthMixture mixture{.lengths = {16, 128, 1024}, .tokens_per_step = 1000};
  for (int64_t step = 0; step < 3; ++step) {
    const StepShape shape = step_shape(task, mixture, 0, step);
    const int64_t row = task.row_length(shape.length, Split::train);
    EXPECT_GE(shape.rows, 1);
    if (row <= 1000) {
      EXPECT_LE(shape.rows * row, 1000);
      EXPECT_GT((shape.rows + 1) * row, 1000);
    } else {
      EXPECT_EQ(shape.rows, 1);
    }
  }
}

TEST(Mixture, BadInput) {
  const RecallTask task({});
  EXPECT_EQ(error_of([&] { step_shape(task, {}, 0, 0); }), "[mixture] has no lengths");
  EXPECT_EQ(error_of([&] { step_shape(task, {.lengths = {8}, .tokens_per_step = 0}, 0, 0); }),
            "[mixture] tokens_per_step is 0; must be at least 1");
  EXPECT_EQ(error_of([&] { step_shape(task, {.lengths = {8}}, 0, -1); }), "[mixture] step is -1; must not be negative");
  EXPECT_EQ(error_of([&] { step_shape(task, {.lengths = {5}}, 0, 0); }),
            "[mixture] length is 5; recall needs at least 6");
}

}  // namespace
}  // namespace ovq::tasks
