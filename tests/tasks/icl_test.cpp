#include "ovq/tasks/icl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using test::error_of;
using test::row_of;

// A hypothesis for one output of a function: y[i] = b + a x[source].
struct Hypothesis {
  int64_t a, b, source;
};

// Knows the family of functions, reads only tokens, and keeps the hypotheses for every function and output that agree
// with the examples so far.
class Solver {
 public:
  explicit Solver(const IclTask& task) : task_(task) {}

  // Its answer, if only one is left.
  std::optional<int64_t> answer(int32_t arrow, size_t output, const std::vector<int64_t>& x) {
    std::set<int64_t> answers;
    for (const Hypothesis& h : left(arrow, output)) answers.insert(h.b + h.a * x[static_cast<size_t>(h.source)]);
    return answers.size() == 1 ? std::optional(*answers.begin()) : std::nullopt;
  }

  void learn(int32_t arrow, size_t output, const std::vector<int64_t>& x, int64_t y) {
    std::erase_if(left(arrow, output),
                  [&](const Hypothesis& h) { return h.b + h.a * x[static_cast<size_t>(h.source)] != y; });
  }

 private:
  std::vector<Hypothesis>& left(int32_t arrow, size_t output) {
    auto [found, fresh] = left_.try_emplace({arrow, output});
    const IclOptions& o = task_.options();
    for (int64_t a = o.a_min; fresh && a <= o.a_max; ++a) {
      for (int64_t b = o.b_min; b <= o.b_max; ++b) {
        for (int64_t source = 0; source < o.tokens; ++source) found->second.push_back({a, b, source});
      }
    }
    return found->second;
  }

  const IclTask& task_;
  std::map<std::pair<int32_t, size_t>, std::vector<Hypothesis>> left_;
};

TEST(Icl, ExamplesAloneAnswerTargets) {
  for (int64_t tokens : {1, 2, 4, 12}) {
    const IclTask task({.vocab = 640, .functions = 3, .function_tokens = 16, .tokens = tokens});
    const SampleRequest request{.rows = 4, .length = 40 * task.example_length() + 1};
    const Batch batch = task.sample(request);
    EXPECT_EQ(test::expect_sound(task, request, batch), 4 * 40 * tokens);
    test::expect_shifted(batch);
    int64_t late = 0, answered = 0;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const auto line = row_of(batch, batch.tokens, row), groups = row_of(batch, batch.groups, row);
      const auto targets = row_of(batch, batch.targets, row);
      EXPECT_EQ(line[0], IclTask::kPadding);
      std::map<int32_t, int32_t> examples;
      Solver solver(task);
      for (size_t start = 1; start < line.size(); start += static_cast<size_t>(task.example_length())) {
        const size_t arrow_at = start + static_cast<size_t>(tokens);
        const int32_t arrow = line[arrow_at];
        EXPECT_GE(arrow, IclTask::kFirstFunction);
        EXPECT_LT(arrow, task.first_content());
        EXPECT_EQ(line[arrow_at + static_cast<size_t>(tokens) + 1], IclTask::kSeparator);
        std::vector<int64_t> x;
        for (size_t i = start; i < arrow_at; ++i) x.push_back(line[i] - task.first_content());
        for (size_t i = 0; i < static_cast<size_t>(tokens); ++i) {
          const int64_t y = targets[arrow_at + i] - task.first_content();
          const std::optional<int64_t> answer = solver.answer(arrow, i, x);
          if (answer) {
            EXPECT_EQ(*answer, y);
          }
          EXPECT_EQ(groups[arrow_at + i], examples[arrow]);
          late += examples[arrow] >= 5;
          answered += examples[arrow] >= 5 && answer;
          solver.learn(arrow, i, x, y);
        }
        ++examples[arrow];
      }
      EXPECT_LE(examples.size(), 3u);
    }
    EXPECT_GT(late, 0);
    EXPECT_GT(static_cast<double>(answered), 0.99 * static_cast<double>(late)) << tokens;
  }
}

TEST(Icl, RowsUseDifferentArrows) {
  const IclTask task({.functions = 2, .function_tokens = 8});
  const Batch batch = task.sample({.rows = 64, .length = 60});
  std::set<int32_t> arrows;
  for (int32_t token : batch.tokens) {
    if (token >= IclTask::kFirstFunction && token < task.first_content()) arrows.insert(token);
  }
  EXPECT_EQ(arrows.size(), 8u);
}

TEST(Icl, TheLargestOutputFitsExactly) {
  const IclTask task({.vocab = 2 + 4 + 31, .functions = 1, .function_tokens = 4, .tokens = 4});
  EXPECT_EQ(task.options().x_max, 5);  // 5 + 5 * 5 = 30, the last token
  const SampleRequest request{.rows = 512, .length = 100};
  const Batch batch = task.sample(request);
  test::expect_sound(task, request, batch);
  EXPECT_EQ(*std::max_element(batch.targets.begin(), batch.targets.end()), 36);
}

// The paper: "a column vector of positive integers".
TEST(Icl, InputsArePositiveAndReachTheirLimit) {
  for (const int64_t x_max : {1, 3}) {
    const IclTask task({.tokens = 3, .a_min = 2, .b_min = 0, .x_max = x_max});
    const Batch batch = task.sample({.rows = 64, .length = 20 * task.example_length()});
    std::set<int64_t> inputs, outputs;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const auto line = row_of(batch, batch.tokens, row);
      for (size_t start = 0; start < line.size(); start += static_cast<size_t>(task.example_length())) {
        for (size_t i = 0; i < 3; ++i) {
          inputs.insert(line[start + i] - task.first_content());
          outputs.insert(line[start + 4 + i] - task.first_content());
        }
      }
    }
    EXPECT_EQ(*inputs.begin(), 1);
    EXPECT_EQ(*inputs.rbegin(), x_max);
    EXPECT_EQ(*outputs.begin(), 2);  // 0 + 2 * 1
    EXPECT_EQ(*outputs.rbegin(), 5 + 5 * x_max);
  }
}

TEST(Icl, BadOptions) {
  const auto error = [](const IclOptions& options) { return error_of([&] { IclTask{options}; }); };
  EXPECT_EQ(error({.functions = 9}), "[icl] functions is 9; must be within 1 and function_tokens, 8");
  EXPECT_EQ(error({.functions = 0}), "[icl] functions is 0; must be within 1 and function_tokens, 8");
  EXPECT_EQ(error({.tokens = 0}), "[icl] tokens is 0; must be at least 1");
  EXPECT_EQ(error({.a_min = 3, .a_max = 2}), "[icl] a is within 3 and 2; must be 1 <= min <= max");
  EXPECT_EQ(error({.b_min = -1}), "[icl] b is within -1 and 5; must be 0 <= min <= max");
  EXPECT_EQ(error({.vocab = 20}), "[icl] vocab is 20; 10 special tokens and y up to 5 + 5 x need at least 21");
  EXPECT_EQ(error({.x_max = 23}), "[icl] x_max is 23; must be within 0 and 22");
}

}  // namespace
}  // namespace ovq::tasks
