// The share of a context that a dictionary keeps: sizes derived from it, and evaluations with it.
#include "ovq/train/keep.h"

#include <gtest/gtest.h>

#include "ovq/train/results.h"
#include "tests/ops/tensor_checks.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

using kernels::Growth;
using kernels::OvqOptions;
using ops::test::message_of;

TEST(Keep, ChosenSizesKeepTheShare) {
  for (const int64_t length : {1, 16, 128, 1000, 65536}) {
    for (const OvqOptions& growth :
         {OvqOptions{}, OvqOptions{.growth = Growth::all}, OvqOptions{.growth = Growth::linear, .total_tokens = 1000},
          OvqOptions{.growth = Growth::square_root}}) {
      for (const double keep : {0.05, 0.2, 0.33, 0.5, 0.8, 0.999999999999, 1.0}) {
        OvqOptions dictionary = growth;
        dictionary.centroids = centroids_for_keep(growth, keep, length, length + 40);
        ASSERT_GE(dictionary.centroids, 1);
        const double kept = static_cast<double>(kernels::target_size(dictionary, length)) / length;
        EXPECT_NEAR(kept, keep, 1.0 / length) << length << " tokens, growth " << static_cast<int>(growth.growth);
        EXPECT_NEAR(keep_of(dictionary, length), keep, 1.0 / length);
        // Every token has its own centroid, including those after the context.
        if (keep == 1) {
          EXPECT_EQ(kernels::target_size(dictionary, length + 40), length + 40);
          EXPECT_EQ(keep_of(dictionary, length), 1);
        }
      }
    }
  }
}

TEST(Keep, IsNOverTPlusNUnderPlateauGrowth) {
  EXPECT_EQ(centroids_for_keep({}, 0.2, 1024, 1100), 256);
  EXPECT_EQ(centroids_for_keep({}, 1.0 / 3, 4096, 4096), 2048);
  EXPECT_EQ(centroids_for_keep({}, 0.33, 512, 600), 252);
  EXPECT_EQ(centroids_for_keep({}, 1, 100, 110), 2 * 110 * 110);
  EXPECT_DOUBLE_EQ(keep_of({.centroids = 256}, 1024), 0.2);
  EXPECT_DOUBLE_EQ(keep_of({.centroids = 100, .growth = Growth::all}, 400), 0.25);
  for (const double bad : {0.0, -0.1, 1.01, std::nan("")}) {
    EXPECT_NE(message_of([&] { centroids_for_keep({}, bad, 10, 10); }).find("must be more than 0 and at most 1"),
              std::string::npos);
  }
}

TEST(Keep, DictionarySizesArePutBackByMixer) {
  json config = to_json(models::model_preset("tiny/sw-ovq").config);
  config["mixers"]["other"] = config["mixers"]["ovq"];
  config["mixers"]["other"]["centroids"] = 77;
  config["pattern"] = "sw,ovq,other";
  const auto model = models::make_model(models::config_from_json(config), 0);
  const auto bytes = model->state_bytes(4096);
  {
    const CentroidsKeeper keeper(*model);
    model->set_centroids(9);
    EXPECT_EQ(model->config().centroids(), (std::map<std::string, int64_t>{{"other", 9}, {"ovq", 9}}));
    EXPECT_LT(model->state_bytes(4096), bytes);
  }
  EXPECT_EQ(model->config().centroids(), (std::map<std::string, int64_t>{{"other", 77}, {"ovq", 128}}));
  EXPECT_EQ(model->state_bytes(4096), bytes);
}

TEST(Keep, ResultsAskedByItAndByNDoNotReplaceEachOther) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", mini_run("recall", "sw-ovq"));
  const Evaluation evaluation{.length = 128};
  run.store_result({.length = 128, .centroids = 32, .keep = 0.2, .evaluation = evaluation});
  run.store_result({.length = 128, .centroids = 32, .keep = 0.2, .asked_keep = 0.2, .evaluation = evaluation});
  run.store_result({.length = 128, .centroids = 63, .keep = 0.33, .asked_keep = 0.33, .evaluation = evaluation});
  EXPECT_EQ(run.results().size(), 3u);
  // The same questions again.
  run.store_result({.length = 128, .centroids = 32, .keep = 0.2, .evaluation = evaluation});
  run.store_result({.length = 128, .centroids = 32, .keep = 0.2, .asked_keep = 0.2, .evaluation = evaluation});
  const std::vector<json> results = run.results();
  ASSERT_EQ(results.size(), 3u);
  int64_t asked = 0;
  for (const json& result : results) {
    EXPECT_TRUE(result.contains("keep"));
    asked += result.contains("asked_keep");
  }
  EXPECT_EQ(asked, 2);
}

TEST(Keep, ResultsOfAnEarlierCheckpointAreDropped) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", mini_run("recall", "sw-ovq"));
  run.store_result({.length = 128, .checkpoint = "step-000010", .evaluation = {.length = 128}});
  run.store_result({.length = 256, .checkpoint = "step-000010", .evaluation = {.length = 256}});
  EXPECT_EQ(run.results().size(), 2u);
  run.store_result({.length = 64, .checkpoint = "step-000020", .evaluation = {.length = 64}});
  ASSERT_EQ(run.results().size(), 1u);
  EXPECT_EQ(run.results()[0].at("length"), 64);
}

// Evaluations in between do not change training, and every share has its own line.
TEST(Keep, EvaluationsInTrainingReportItAndPutTheSizeBack) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("recall", "sw-ovq");
  const train::Run plain = train::Run::create(directory.path() / "plain", options);
  options.eval_keep = {0.25, 1};
  const train::Run watched = train::Run::create(directory.path() / "watched", options);
  Trainer first(plain, {}), second(watched, {});
  std::map<double, int64_t> lines;
  ASSERT_EQ(first.train(), Outcome::finished);
  ASSERT_EQ(second.train(), Outcome::finished);
  EXPECT_EQ(losses(plain), losses(watched));
  EXPECT_EQ(second.model().config().centroids().at("ovq"), 16);
  int64_t without = 0;
  for (const json& line : watched.metrics()) {
    if (line.at("kind") != "evaluation") continue;
    EXPECT_EQ(line.at("length"), 48);
    if (!line.contains("keep")) {
      ++without;
      EXPECT_EQ(line.at("centroids"), 16);
      continue;
    }
    ++lines[line.at("keep").get<double>()];
    if (line.at("keep") == 0.25) {
      EXPECT_EQ(line.at("centroids"), 16);  // 0.25 * 48 / 0.75
    } else {
      EXPECT_GE(line.at("centroids"), 2 * 48 * 48);
    }
  }
  EXPECT_EQ(without, 2);
  EXPECT_EQ(lines, (std::map<double, int64_t>{{0.25, 2}, {1.0, 2}}));
  const RunOptions other = run_options_from_json({{"eval_keep", {0.2}}, {"model", "gdn"}});
  EXPECT_EQ(message_of([&] { model_config(other, 128); }), "[config] eval_keep is [0.2]; gdn has no OVQ-attention");
  EXPECT_EQ(message_of([&] {
              run_options_from_json({{"eval_keep", {0.2, 1.5}}});
            }),
            "[config] eval_keep is [0.2,1.5]; must be a list of numbers above 0 and at most 1");
}

}  // namespace
}  // namespace ovq::train::test
