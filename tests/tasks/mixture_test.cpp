#include "ovq/tasks/mixture.h"

#include <gtest/gtest.h>

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

TEST(Mixture, EqualTokensOfEveryLength) {
  const IclTask task({});
  const std::vector<StepShape> shapes = step_shapes(task, {.lengths = halved_lengths(128), .tokens_per_step = 1024});
  ASSERT_EQ(shapes.size(), 4u);
  for (const StepShape& shape : shapes) EXPECT_EQ(shape.rows * shape.length, 256);
  EXPECT_EQ(shapes.front().length, 16);
  EXPECT_EQ(shapes.back().length, 128);
}

TEST(Mixture, CountsTheQuerySection) {
  const RecallTask task({});
  for (const StepShape& shape : step_shapes(task, {.lengths = {16, 128, 1024}, .tokens_per_step = 3000})) {
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
  EXPECT_EQ(error_of([&] { step_shapes(task, {}); }), "[mixture] has no lengths");
  EXPECT_EQ(error_of([&] { step_shapes(task, {.lengths = {8}, .tokens_per_step = 0}); }),
            "[mixture] tokens_per_step is 0; must be at least 1");
  EXPECT_EQ(error_of([&] { step_shapes(task, {.lengths = {5}}); }), "[mixture] length is 5; recall needs at least 6");
}

}  // namespace
}  // namespace ovq::tasks
