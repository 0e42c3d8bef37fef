#include "ovq/train/sweep.h"

#include <gtest/gtest.h>

#include "tests/ops/tensor_checks.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

using ops::test::message_of;

struct SweptRun {
  explicit SweptRun(const std::string& task = "recall", const std::string& pattern = "sw-ovq")
      : run(train::Run::create(directory.path() / "run", mini_run(task, pattern))),
        trained{.checkpoint = run.path() / "checkpoints" / "step-000020",
                .model = models::make_model(run.config({}), 3)} {}

  TemporaryDirectory directory;
  train::Run run;
  TrainedModel trained;
};

TEST(Sweep, GoesThroughLengthsAndSizes) {
  const SweptRun swept;
  const Sweep found = sweep(swept.run, swept.trained,
                            {.lengths = {32, 64}, .centroids = {8}, .keeps = {0.2, 1}, .evaluate = {.rows = 2}});
  EXPECT_EQ(found.model, "sw-ovq");
  EXPECT_EQ(found.task, "recall");
  EXPECT_EQ(found.checkpoint, "step-000020");
  ASSERT_EQ(found.results.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const Result& result = found.results[i];
    const int64_t length = i < 3 ? 32 : 64;
    EXPECT_EQ(result.length, length);
    EXPECT_EQ(result.evaluation.length, length);
    EXPECT_EQ(result.evaluation.rows, 2);
    if (i % 3 == 0) {
      EXPECT_EQ(result.centroids, 8);
      EXPECT_FALSE(result.asked_keep);
      EXPECT_DOUBLE_EQ(*result.keep, 8.0 / static_cast<double>(length + 8));
    } else if (i % 3 == 1) {
      EXPECT_EQ(result.centroids, length / 4);
      EXPECT_EQ(result.asked_keep, 0.2);
      EXPECT_DOUBLE_EQ(*result.keep, 0.2);
    } else {
      EXPECT_EQ(result.asked_keep, 1);
      EXPECT_EQ(result.keep, 1);
    }
  }
  EXPECT_EQ(swept.run.results().size(), 6u);
  json stored = swept.run.results();
  for (json& line : stored) {
    EXPECT_EQ(line["checkpoint"], "step-000020");
    line.erase("checkpoint");
  }
  EXPECT_EQ(stored, to_json(found));
  EXPECT_EQ(swept.trained.model->config().centroids().at("ovq"), 16);  // as before
  // The same evaluation again replaces its result.
  sweep(swept.run, swept.trained, {.lengths = {32}, .keeps = {0.2}, .evaluate = {.rows = 2}});
  EXPECT_EQ(swept.run.results().size(), 6u);
}

TEST(Sweep, HasItsOwnSizeAndTheTestsOfTheScaleByDefault) {
  const SweptRun swept("icl");
  const Sweep found = sweep(swept.run, swept.trained, {.evaluate = {.rows = 1}});
  const auto& wanted = swept.run.description().evaluations;
  ASSERT_EQ(found.results.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found.results[i].length, wanted[i].length);
    EXPECT_EQ(found.results[i].options, wanted[i].options);
    EXPECT_EQ(found.results[i].centroids, 16);
  }
}

TEST(Sweep, WithoutADictionary) {
  const SweptRun swept("recall", "gdn");
  const Sweep found = sweep(swept.run, swept.trained, {.lengths = {32}, .evaluate = {.rows = 1}});
  EXPECT_EQ(found.results.at(0).centroids, 0);
  EXPECT_FALSE(found.results.at(0).keep);
  for (const SweepOptions& bad :
       {SweepOptions{.lengths = {32}, .keeps = {0.2}}, SweepOptions{.lengths = {32}, .centroids = {4}}}) {
    const std::string what = bad.keeps.empty() ? "centroids" : "keeps";
    EXPECT_EQ(message_of([&] { sweep(swept.run, swept.trained, bad); }),
              "[sweep] " + what + " are given; gdn has no OVQ-attention");
  }
}

TEST(Sweep, RefusesLengthsTheTaskCannotHave) {
  const SweptRun swept;
  EXPECT_EQ(message_of([&] { sweep(swept.run, swept.trained, {.lengths = {1}}); }).find("[evaluate] length is 1; "),
            0u);
  EXPECT_TRUE(swept.run.results().empty());
}

TEST(Sweep, Table) {
  const Sweep found{.model = "sw-ovq",
                    .task = "icl",
                    .checkpoint = "step-000020",
                    .results = {{.length = 128,
                                 .centroids = 32,
                                 .keep = 0.2,
                                 .options = {{"functions", 4}},
                                 .evaluation = {.total = {.targets = 4, .right = 3, .loss_sum = 2},
                                                .state_bytes = 1500,
                                                .seconds = 2,
                                                .tokens = 512}},
                                {.length = 65536, .evaluation = {.seconds = 1, .tokens = 3}}}};
  EXPECT_EQ(to_table(found),
            "sw-ovq on icl, step-000020\n\n"
            "  length  centroids   keep   accuracy      loss      state     tokens/s  options\n"
            "     128         32  0.200     0.7500    0.5000     1.5 kB          256  {\"functions\":4}\n"
            "   65536          -      -     0.0000    0.0000        0 B            3  \n");
}

}  // namespace
}  // namespace ovq::train::test
