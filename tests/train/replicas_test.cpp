// Two trainers that share the rows of each step, as threads: what they must agree on. tests/cli/processes.py tests the
// same with processes.
#include "ovq/train/replicas.h"

#include <cmath>
#include <limits>

#include "ovq/models/weights.h"
#include "tests/distributed/ranks.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

struct RankResult {
  Progress progress;
  models::NamedTensors weights;
  std::vector<StepReport> reports;
};

// Trains on two ranks; before(trainer, rank) may interfere.
std::vector<RankResult> train_on_two(const RunOptions& options,
                                     const std::function<void(Trainer&, int64_t rank)>& before) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", options);
  std::vector<RankResult> results(2);
  distributed::test::on_ranks(2, [&](const distributed::test::Group& group) {
    const int64_t rank = group->rank();
    RankResult& result = results[static_cast<size_t>(rank)];
    TrainHooks hooks;
    hooks.on_step = [&](const StepReport& report) { result.reports.push_back(report); };
    Trainer trainer(rank == 0 ? run : train::Run::elsewhere("", options), hooks, {.group = group});
    before(trainer, rank);
    EXPECT_EQ(trainer.train(), Outcome::finished);
    result.progress = trainer.progress();
    for (const auto& [name, tensor] : models::named_tensors(trainer.model()))
      result.weights[name] = tensor.detach().clone();
  });
  return results;
}

TEST(Replicas, WhatIsNotFiniteOnOneRankIsSkippedOnAll) {
  constexpr int64_t kBad = 3;
  RunOptions options = mini_run("recall", "sw-ovq");
  options.steps = 6;
  for (const int64_t bad_rank : {0, 1}) {
    const auto results = train_on_two(options, [&](Trainer& trainer, int64_t rank) {
      if (rank != bad_rank) return;
      trainer.model().parameters().front().register_hook([&trainer](const at::Tensor& gradient) {
        const bool bad = trainer.progress().step == kBad;
        return bad ? gradient * std::numeric_limits<float>::quiet_NaN() : gradient;
      });
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.progress.step, 6);
      EXPECT_EQ(result.progress.skipped, 1);
    }
    ASSERT_EQ(results[0].reports.size(), 6u);
    for (const StepReport& report : results[0].reports) {
      EXPECT_EQ(report.skipped, report.step == kBad + 1);
      EXPECT_EQ(std::isfinite(report.gradient_norm), !report.skipped);
    }
    EXPECT_TRUE(results[1].reports.empty());  // only the first rank reports
    for (const auto& [name, tensor] : results[0].weights) {
      EXPECT_TRUE(at::equal(tensor, results[1].weights.at(name))) << name;
      EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
    }
  }
}

TEST(Replicas, OtherWeightsOnARankAreFound) {
  RunOptions options = mini_run("recall", "sw-ovq");
  options.steps = 2;
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", options);
  distributed::test::on_ranks(2, [&](const distributed::test::Group& group) {
    Trainer trainer(group->rank() == 0 ? run : train::Run::elsewhere("", options), {}, {.group = group});
    if (group->rank() == 1) trainer.model().parameters().front().detach().view(-1)[0] += 1;
    try {
      trainer.train();
      ADD_FAILURE() << "not found";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the weights of rank 1 differ from those of rank 0");
    }
  });
  EXPECT_FALSE(find_checkpoint(run.path(), {}));
}

}  // namespace
}  // namespace ovq::train::test
