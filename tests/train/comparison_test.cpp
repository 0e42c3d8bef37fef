#include "ovq/train/comparison.h"

#include <gtest/gtest.h>

#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

// An evaluation in which `right` of ten targets were hit.
Evaluation ten_targets(int64_t length, int64_t right) {
  return {.length = length,
          .total = {.targets = 10, .right = right, .loss_sum = 20},
          .state_bytes = 10 * length,
          .seconds = 1,
          .tokens = length};
}

Result at(int64_t length, int64_t centroids, int64_t right) {
  return {.length = length, .centroids = centroids, .keep = 0.5, .evaluation = ten_targets(length, right)};
}

TEST(TrainingCost, CountsSteps) {
  const TrainingCost cost = training_cost({{{"kind", "step"}, {"tokens", 100}, {"seconds", 0.5}},
                                           {{"kind", "evaluation"}, {"accuracy", 1}},
                                           {{"kind", "step"}, {"tokens", 150}, {"seconds", 0.25}}});
  EXPECT_EQ(cost.steps, 2);
  EXPECT_EQ(cost.tokens, 250);
  EXPECT_DOUBLE_EQ(cost.seconds, 0.75);
}

TEST(RunComparison, ARowForEachDictionary) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "one", mini_run("recall", "sw-ovq"));
  run.append_metrics({{"kind", "step"}, {"step", 1}, {"tokens", 1'500'000}, {"seconds", 61.0}});
  Result asked = at(128, 128, 10);
  asked.asked_keep = 0.5;
  run.store_result(asked);
  run.store_result(at(128, 64, 9));
  run.store_result(at(64, 64, 10));
  run.store_result(at(64, 8, 5));
  RunComparison comparison;
  comparison.add(run, [](const std::string& text) { ADD_FAILURE() << text; });

  ASSERT_EQ(comparison.tables().size(), 1u);
  const auto& [title, table] = *comparison.tables().begin();
  EXPECT_EQ(title, "recall (tiny), accuracy");
  ASSERT_EQ(table.rows.size(), 3u);  // by size first, in their order, then by share
  EXPECT_EQ(table.rows[0].label, "sw-ovq [one] N 8");
  EXPECT_EQ(table.rows[1].label, "sw-ovq [one] N 64");
  EXPECT_EQ(table.rows[2].label, "sw-ovq [one] keep 0.5");
  EXPECT_EQ(table.rows[1].by_length, (std::map<int64_t, double>{{64, 1.0}, {128, 0.9}}));
  EXPECT_EQ(table.rows[1].state_bytes, 1280);  // of the longest, though stored first
  EXPECT_EQ(table.rows[1].tokens_per_second, 128);
  EXPECT_EQ(comparison.to_text(),
            "recall (tiny), accuracy\n"
            "                           64     128         N   keep      state  tokens/s\n"
            "sw-ovq [one] N 8        0.500       -         8  0.500      640 B        64\n"
            "sw-ovq [one] N 64       1.000   0.900        64  0.500     1.3 kB       128\n"
            "sw-ovq [one] keep 0.5       -   1.000       128  0.500     1.3 kB       128\n"
            "N, the share of the context that it keeps, state per sequence and reading speed are those at the longest "
            "length.\n"
            "sw-ovq [one]: 1 steps, 1.50M tokens, 1:01\n\n");

  ASSERT_EQ(comparison.results().size(), 4u);
  const json& first = comparison.results()[0];
  EXPECT_EQ(first.at("run"), run.path().string());
  EXPECT_EQ(first.at("model"), "sw-ovq");
  EXPECT_EQ(first.at("task"), "recall");
  EXPECT_EQ(first.at("asked_keep"), 0.5);
  EXPECT_EQ(first.at("training"), (json{{"steps", 1}, {"tokens", 1'500'000}, {"seconds", 61.0}}));
  EXPECT_FALSE(first.contains("groups"));
}

TEST(RunComparison, ATableForEachTask) {
  const TemporaryDirectory directory;
  RunOptions text = mini_run("text", "sw-nope");
  text.task_options["train"] = "nowhere";
  const train::Run runs[] = {train::Run::create(directory.path() / "a", mini_run("recall", "sw-ovq")),
                             train::Run::create(directory.path() / "b", mini_run("recall", "gdn")),
                             train::Run::create(directory.path() / "c", text)};
  RunComparison comparison;
  for (const train::Run& run : runs) {
    run.store_result({.length = 64, .evaluation = ten_targets(64, 10)});
    comparison.add(run, {});
  }
  ASSERT_EQ(comparison.tables().size(), 2u);
  EXPECT_EQ(comparison.tables().at("recall (tiny), accuracy").rows.size(), 2u);
  const ComparisonTable& prose = comparison.tables().at("text (tiny), loss");
  ASSERT_EQ(prose.rows.size(), 1u);
  EXPECT_EQ(prose.rows[0].by_length.at(64), 2);  // the loss
  EXPECT_FALSE(prose.rows[0].keep);
  EXPECT_THROW(comparison.by_position(), std::invalid_argument);  // recall has no positions
}

TEST(RunComparison, LossByPositionIsOfTheLongestCommonLength) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("text", "sw-nope");
  options.task_options["train"] = "nowhere";
  const train::Run a = train::Run::create(directory.path() / "a", options);
  options.model = "gdn";
  const train::Run b = train::Run::create(directory.path() / "b", options);
  const auto with_bins = [](int64_t length, double loss) {
    Result found{.length = length, .evaluation = ten_targets(length, 10)};
    for (int64_t bin = 0; bin < length / 64; ++bin)
      found.evaluation.groups[bin] = {.targets = 1, .loss_sum = loss + static_cast<double>(bin)};
    return found;
  };
  for (const auto& [run, longest] : {std::pair(&a, 256), std::pair(&b, 128)}) {
    run->store_result(with_bins(128, 1));
    run->store_result(with_bins(longest, 2));
  }
  RunComparison comparison;
  comparison.add(a, {});
  comparison.add(b, {});
  const std::vector<PositionLoss> losses = comparison.by_position();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].length, 128);
  EXPECT_EQ(losses[0].bin, 64);  // the scale's, which run.json does not have
  EXPECT_EQ(losses[0].losses, (std::vector<double>{1, 2}));
  EXPECT_EQ(losses[1].losses, (std::vector<double>{2, 3}));  // the later evaluation
  EXPECT_NE(to_table(losses).find("64-127"), std::string::npos) << to_table(losses);
}

TEST(RunComparison, BinsOfDifferentSizesAreNotCompared) {
  const TemporaryDirectory directory;
  RunComparison comparison;
  for (const int64_t bin : {32, 64}) {
    RunOptions options = mini_run("text", "sw-nope");
    options.task_options["train"] = "nowhere";
    options.task_options["bin"] = bin;
    const train::Run run = train::Run::create(directory.path() / std::to_string(bin), options);
    Result found{.length = 64, .evaluation = ten_targets(64, 10)};
    found.evaluation.groups[0] = {.targets = 1, .loss_sum = 1};
    run.store_result(found);
    comparison.add(run, {});
  }
  EXPECT_THROW(comparison.by_position(), std::invalid_argument);
}

}  // namespace
}  // namespace ovq::train::test
