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

TEST(Mixture, PartsShareEveryRowOnce) {
  const RecallTask task({});
  for (const int64_t tokens : {600, 3000, 8192}) {
    const auto shapes = step_shapes(task, {.lengths = {16, 64, 256, 1024}, .tokens_per_step = tokens});
    int64_t longest = 0, all = 0;
    for (const StepShape& shape : shapes) {
      const int64_t row = task.row_length(shape.length, Split::train);
      longest = std::max(longest, row);
      all += shape.rows * row;
    }
    for (const int64_t parts : {1, 2, 3, 4, 7, 8, 200}) {
      const auto ranges = rows_of_parts(task, shapes, parts);
      ASSERT_EQ(ranges.size(), static_cast<size_t>(parts));
      std::vector<int64_t> next(shapes.size());
      int64_t first_half = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const auto& own_ranges = ranges[static_cast<size_t>(part)];
        ASSERT_EQ(own_ranges.size(), shapes.size());
        int64_t own = 0;
        for (size_t i = 0; i < shapes.size(); ++i) {
          EXPECT_EQ(own_ranges[i].first, next[i]);  // one after the other
          next[i] += own_ranges[i].count;
          own += own_ranges[i].count * task.row_length(shapes[i].length, Split::train);
        }
        EXPECT_LE(own, all / parts + longest);  // as even as whole rows allow
        if (part < parts / 2) first_half += own;
      }
      if (parts % 2 == 0) {
        EXPECT_NEAR(static_cast<double>(first_half), static_cast<double>(all) / 2, static_cast<double>(longest));
      }
      for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(next[i], shapes[i].rows);
    }
  }
  // One long row for the first part: the second gets the odd short one.
  const auto ranges = rows_of_parts(task, {{.length = 16, .rows = 3}, {.length = 64, .rows = 1}}, 2);
  EXPECT_EQ(ranges[1][0].count, 2);
  EXPECT_EQ(ranges[1][1].count, 0);
  // Two rows in four parts: one in each half.
  const auto halves = rows_of_parts(task, {{.length = 64, .rows = 2}}, 4);
  EXPECT_EQ(halves[0][0].count + halves[1][0].count, 1);
}

TEST(Mixture, BadInput) {
  const RecallTask task({});
  EXPECT_EQ(error_of([&] { step_shapes(task, {}); }), "[mixture] lengths is empty; must have at least one");
  EXPECT_EQ(error_of([&] { step_shapes(task, {.lengths = {8}, .tokens_per_step = 0}); }),
            "[mixture] tokens_per_step is 0; must be at least 1");
  EXPECT_EQ(error_of([&] { rows_of_parts(task, {}, 0); }), "[mixture] parts is 0; must be at least 1");
  EXPECT_EQ(error_of([&] { step_shapes(task, {.lengths = {5}}); }), "[mixture] length is 5; recall needs at least 6");
}

}  // namespace
}  // namespace ovq::tasks
