// Properties of all generated tasks: purity, bounds, splits, bad requests.
#include "ovq/tasks/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <set>

#include "ovq/tasks/registry.h"
#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using test::equal;
using test::error_of;
using test::row_of;

class Generated : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Task> task_ = make_task(GetParam(), {{"scale", "tiny"}});
  SampleRequest request_{.rows = 3, .length = 96, .seed = 5, .step = 7};
};

TEST_P(Generated, SameRequestSameBatch) {
  const Batch batch = task_->sample(request_);
  EXPECT_TRUE(equal(batch, task_->sample(request_)));
  EXPECT_TRUE(equal(batch, make_task(GetParam())->sample(request_)));
}

TEST_P(Generated, EveryNumberOfTheRequestMatters) {
  SampleRequest seed = request_, step = request_, split = request_;
  ++seed.seed;
  ++step.step;
  split.split = Split::test;
  std::set<std::vector<int32_t>> rows;
  for (const SampleRequest& request : {request_, seed, step, split}) {
    const Batch batch = task_->sample(request);
    for (int64_t row = 0; row < batch.rows; ++row) {
      const auto tokens = row_of(batch, batch.tokens, row);
      rows.emplace(tokens.begin(), tokens.begin() + request.length);
    }
  }
  EXPECT_EQ(rows.size(), 12u);
}

TEST_P(Generated, MoreRowsContinueTheBatch) {
  SampleRequest more = request_;
  more.rows = 5;
  const Batch batch = task_->sample(request_), longer = task_->sample(more);
  EXPECT_TRUE(std::equal(batch.tokens.begin(), batch.tokens.end(), longer.tokens.begin()));
}

TEST_P(Generated, PartsAreRowsOfTheBatch) {
  const auto task = make_task(GetParam());
  const Batch whole = task->sample({.rows = 5, .length = 64, .seed = 3, .step = 2});
  const Batch part = task->sample({.rows = 5, .length = 64, .seed = 3, .step = 2, .first_row = 2, .row_count = 2});
  const Batch rest = task->sample({.rows = 5, .length = 64, .seed = 3, .step = 2, .first_row = 2});
  EXPECT_EQ(part.rows, 2);
  EXPECT_EQ(rest.rows, 3);
  const auto first = whole.tokens.begin() + 2 * whole.length;
  EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), first));
  EXPECT_TRUE(std::equal(rest.tokens.begin(), rest.tokens.end(), first));
  EXPECT_TRUE(std::equal(part.targets.begin(), part.targets.end(), whole.targets.begin() + 2 * whole.length));
  for (const auto& [first_row, count] : {std::pair<int64_t, int64_t>{5, 0}, {-1, 1}, {3, 3}, {0, -1}}) {
    EXPECT_THROW(task->sample({.rows = 5, .length = 64, .first_row = first_row, .row_count = count}),
                 std::invalid_argument);
  }
}

TEST_P(Generated, AllScalesAndLengthsAreSound) {
  for (const std::string& scale : scale_names()) {
    const Preset sizes = preset(GetParam(), scale);
    const auto task = make_task(GetParam(), {{"scale", scale}});
    for (int64_t length : sizes.train_lengths) {
      const SampleRequest request{.rows = 2, .length = length};
      EXPECT_GT(test::expect_sound(*task, request, task->sample(request)), 0);
    }
    for (const EvaluationSetting& evaluation : sizes.evaluations) {
      nlohmann::json options = evaluation.options;
      options["scale"] = scale;
      const auto tested = make_task(GetParam(), options);
      EXPECT_EQ(tested->vocab(), task->vocab());
      const SampleRequest request{.rows = 1, .length = evaluation.length, .split = Split::test};
      EXPECT_GT(test::expect_sound(*tested, request, tested->sample(request)), 0);
    }
  }
}

TEST_P(Generated, EveryLengthFromTheShortestOn) {
  for (int64_t length = task_->min_length(); length < task_->min_length() + 40; ++length) {
    for (Split split : {Split::train, Split::test}) {
      const SampleRequest request{.rows = 2, .length = length, .split = split};
      EXPECT_GT(test::expect_sound(*task_, request, task_->sample(request)), 0) << length;
    }
  }
}

TEST_P(Generated, TimeIsLinear) {
  const auto task = make_task(GetParam(), {{"scale", "paper"}});
  const auto seconds = [&](int64_t length) {
    double best = 1e9;
    for (int64_t step = 0; step < 3; ++step) {
      const std::clock_t start = std::clock();  // of this process, so independent of other load
      task->sample({.length = length, .step = step});
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  };
  // mqar's vocabulary of 8,192 has no keys for longer rows. Quadratic would be 256.
  const int64_t length = GetParam() == "mqar" ? 512 : 4096;
  EXPECT_LT(seconds(16 * length), 80 * seconds(length) + 0.005);
}

TEST_P(Generated, BadRequests) {
  const auto error = [&](SampleRequest request) { return error_of([&] { task_->sample(request); }); };
  const std::string op = "[" + GetParam() + "] ";
  EXPECT_EQ(error({.rows = 0, .length = 64}), op + "rows is 0; must be at least 1");
  EXPECT_EQ(error({.length = 64, .step = -1}), op + "step is -1; must not be negative");
  const std::string least = std::to_string(task_->min_length());
  EXPECT_EQ(error({.length = task_->min_length() - 1}),
            op + "length is " + std::to_string(task_->min_length() - 1) + "; must be at least " + least);
  EXPECT_NE(error({.rows = int64_t{1} << 40, .length = 64}).find("tokens"), std::string::npos);
  EXPECT_NE(error({.length = int64_t{1} << 60}).find("tokens"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Tasks, Generated, testing::Values("recall", "positional-recall", "icl", "mqar"),
                         [](const auto& info) {
                           return info.param == "positional-recall" ? "positional" : info.param;
                         });

}  // namespace
}  // namespace ovq::tasks
