// The runs of a set, their order, and which of them are done.
#include "ovq/experiments/plan.h"

#include <gtest/gtest.h>

#include "ovq/experiments/reproduce.h"
#include "tests/experiments/sets.h"

namespace ovq::experiments::test {
namespace {

std::vector<std::string> labels(const std::vector<PlannedRun>& runs) {
  std::vector<std::string> all;
  for (const PlannedRun& run : runs) all.push_back(run.label);
  return all;
}

class Plan : public testing::Test {
 protected:
  std::vector<PlannedRun> plan(const json& set, const Selection& selection = {}) {
    return plan_runs(read_experiment_set(write_set(directory_, set)), selection, directories_);
  }
  void store(const PlannedRun& run, const ExperimentResult& result) {
    std::filesystem::create_directories(run.result.parent_path());
    std::ofstream(run.result) << to_json(result);
  }

  TemporaryDirectory directory_;
  SetDirectories directories_{.results = directory_.path() / "results", .runs = directory_.path() / "runs"};
};

using Labels = std::vector<std::string>;

TEST_F(Plan, AllExperimentsWithOneSeedThenWithTheNext) {
  const auto runs = plan(short_set());
  EXPECT_EQ(labels(runs), (Labels{"pair/sw-ovq-3", "pair/sw-nope-3", "pair/sw-ovq-4"}));
  EXPECT_EQ(runs[0].directory, directories_.runs / "pair/sw-ovq-3");
  EXPECT_EQ(runs[0].result, directories_.results / "pair/sw-ovq-3.json");
  EXPECT_EQ(labels(plan(short_set(), {.claims = {2}})), (Labels{"pair/sw-ovq-3", "pair/sw-ovq-4"}));
  EXPECT_EQ(labels(plan(short_set(), {.names = {"sw-nope"}})), (Labels{"pair/sw-nope-3"}));
  EXPECT_EQ(labels(plan(short_set(), {.names = {"pair/sw-nope"}})), (Labels{"pair/sw-nope-3"}));
  EXPECT_EQ(labels(plan(short_set(), {.names = {"pair"}, .seeds = 1})), (Labels{"pair/sw-ovq-3", "pair/sw-nope-3"}));
  EXPECT_THROW(plan(short_set(), {.seeds = 2}), std::invalid_argument);  // one experiment has a single seed
}

TEST_F(Plan, AResultCountsIfItAnswersWhatIsAsked) {
  PlannedRun run = plan(short_set()).front();
  EXPECT_FALSE(run.finished());
  store(run, result_of(run.experiment, 3, 0.5));
  ASSERT_TRUE(run.finished());
  EXPECT_EQ(run.finished()->evaluations.at(0).at("accuracy"), 0.5);
  PlannedRun longer = run;
  longer.experiment.options["steps"] = 6;
  EXPECT_FALSE(longer.finished());
  PlannedRun wider = run;
  wider.experiment.evaluations[0].keep.push_back(0.5);
  EXPECT_FALSE(wider.finished());
  store(run, result_of(run.experiment, 4, 0.5));  // of another seed
  EXPECT_FALSE(run.finished());
}

// As version 0.1.0 wrote them, with fields that are gone since.
TEST_F(Plan, ResultsOfOlderProgramsCount) {
  PlannedRun run = plan(short_set()).front();
  const auto counts = [&](int64_t keep, const char* trial) {
    json result = to_json(result_of(run.experiment, 3, 0.5));
    result["options"].erase("keep_checkpoints");
    result["options"]["keep"] = keep;
    result["options"]["model_options"]["mixers"]["ovq"]["trial"] = trial;
    std::filesystem::create_directories(run.result.parent_path());
    std::ofstream(run.result) << result;
    return run.finished().has_value();
  };
  EXPECT_TRUE(counts(2, "none"));
  EXPECT_FALSE(counts(3, "none"));
  EXPECT_FALSE(counts(2, "log-size"));
}

TEST_F(Plan, ASearchMayHaveEvaluationsOfItsOwn) {
  json set = short_set();
  set["groups"][0]["search"] = {
      {"learning_rates", {1e-3}}, {"seeds", {0}}, {"evaluations", {{{"lengths", {32}}, {"rows", 2}, {"keep", {0.5}}}}}};
  const auto runs = plan(set, {.seeds = 1});
  ASSERT_EQ(runs.size(), 4u);
  const EvaluationRequest asked{.lengths = {32}, .keep = {0.5}, .rows = 2};
  EXPECT_EQ(runs[0].experiment.evaluations, std::vector{asked});
  EXPECT_EQ(runs[1].experiment.evaluations, (std::vector{EvaluationRequest{.lengths = {32}, .rows = 2}}));
  EXPECT_EQ(runs[2].experiment.evaluations, plan(short_set()).at(0).experiment.evaluations);
}

TEST_F(Plan, ASearchComesFirstAndOnlyIfItIsNeeded) {
  json set = short_set();
  set["groups"][0]["search"] = {{"learning_rates", {1e-3, 2e-3}}, {"seeds", {0}}};
  const auto runs = plan(set, {.seeds = 1});
  EXPECT_EQ(labels(runs), (Labels{"pair/search/sw-ovq-rate-0.001-0", "pair/search/sw-ovq-rate-0.002-0",
                                  "pair/search/sw-nope-rate-0.001-0", "pair/search/sw-nope-rate-0.002-0",
                                  "pair/sw-ovq-3", "pair/sw-nope-3"}));
  EXPECT_EQ(runs[1].options().learning_rate, 2e-3);
  EXPECT_TRUE(runs[1].has_rate());
  EXPECT_FALSE(runs[4].has_rate());

  ExperimentResult done = result_of(runs[4].experiment, 3, 0.5);
  done.options = runs[4].experiment.run_options(3, 1e-3);
  store(runs[4], done);
  EXPECT_EQ(labels(plan(set, {.seeds = 1})),
            (Labels{"pair/search/sw-nope-rate-0.001-0", "pair/search/sw-nope-rate-0.002-0", "pair/sw-ovq-3",
                    "pair/sw-nope-3"}));
  done.options = runs[4].experiment.run_options(3, 3e-3);  // none of the rates
  store(runs[4], done);
  EXPECT_EQ(plan(set, {.seeds = 1}).size(), 6u);
}

TEST_F(Plan, TheBestMeanOverSeedsIsTheRate) {
  const Experiment experiment = plan(short_set()).front().experiment;
  const auto tuned = [&](double rate, uint64_t seed, double accuracy) {
    ExperimentResult result = result_of(experiment, seed, accuracy);
    result.options.learning_rate = rate;
    return result;
  };
  const RateChoice choice =
      choose_rate({tuned(1e-3, 0, 0.9), tuned(1e-3, 1, 0.1), tuned(2e-3, 0, 0.6), tuned(2e-3, 1, 0.6)});
  EXPECT_EQ(choice.learning_rate, 2e-3);
  ASSERT_EQ(choice.record.size(), 2u);
  EXPECT_DOUBLE_EQ(choice.record[0].at("score"), 0.5);
  EXPECT_EQ(choice.record[0].at("runs"), 2);

  EXPECT_EQ(choose_rate({tuned(2e-3, 0, 0.5), tuned(1e-3, 0, 0.5)}).learning_rate, 1e-3);  // of equals the lower
  ExperimentResult surer = tuned(2e-3, 0, 0.5);
  surer.evaluations[0]["loss"] = 0.1;
  EXPECT_EQ(choose_rate({surer, tuned(1e-3, 0, 0.5)}).learning_rate, 2e-3);
  ExperimentResult low = tuned(1e-3, 0, 0.9), high = tuned(2e-3, 0, 0.1);  // loss 0.1 and 0.9
  low.metric = high.metric = "loss";
  EXPECT_EQ(choose_rate({low, high}).learning_rate, 1e-3);
  low.evaluations[0]["loss"] = json();  // not a number: worse than any
  EXPECT_EQ(choose_rate({low, high}).learning_rate, 2e-3);
}

TEST_F(Plan, ASearchWhoseBestRateLiesAtAnEdgeGoesOn) {
  json set = short_set();
  set["groups"][0]["search"] = {{"learning_rates", {1e-3, 2e-3}}, {"seeds", {0}}, {"extend", 2}};
  const Selection one{.names = {"sw-ovq"}, .seeds = 1};
  const auto finish = [&](double rate, double accuracy) {
    for (const PlannedRun& run : plan(set, one)) {
      if (!run.tuning || run.learning_rate != rate) continue;
      ExperimentResult result = result_of(run.experiment, 0, accuracy);
      result.options = run.options();
      store(run, result);
    }
  };
  finish(1e-3, 0.5);
  EXPECT_EQ(plan(set, one).size(), 3u);  // half a search decides nothing
  finish(2e-3, 0.6);
  EXPECT_EQ(labels(plan(set, one)), (Labels{"pair/search/sw-ovq-rate-0.001-0", "pair/search/sw-ovq-rate-0.002-0",
                                            "pair/search/sw-ovq-rate-0.004-0", "pair/sw-ovq-3"}));
  finish(4e-3, 0.7);
  EXPECT_EQ(plan(set, one).at(3).label, "pair/search/sw-ovq-rate-0.008-0");
  finish(8e-3, 0.8);
  EXPECT_EQ(plan(set, one).size(), 5u);  // two more, as asked

  // A result with an added rate needs no search, even if the search's results are gone.
  const PlannedRun reported = plan(set, one).back();
  ExperimentResult result = result_of(reported.experiment, 3, 0.8);
  result.options = reported.experiment.run_options(3, 4e-3);
  std::filesystem::remove_all(directories_.results / "pair/search");
  store(reported, result);
  EXPECT_FALSE(plan(set, one).back().finished());
  result.search = json::array({{{"learning_rate", 2e-3}}, {{"learning_rate", 4e-3}}});
  store(reported, result);
  EXPECT_EQ(plan(set, one).size(), 1u);
}

TEST_F(Plan, ASearchResultThatIsGoneFailsTheRunsThatNeedIt) {
  json set = short_set();
  set["groups"][0]["search"] = {{"learning_rates", {1e-3, 2e-3}}, {"seeds", {0}}, {"extend", 1}};
  const auto runs = plan(set, {.names = {"sw-ovq"}});
  for (const char* damage : {"gone", "half"}) {
    for (const PlannedRun& run : runs) {
      if (!run.tuning) continue;
      ExperimentResult result = result_of(run.experiment, 0, 0.5);
      result.options = run.options();
      store(run, result);
    }
    Reproduction reproduction(runs, {});
    ASSERT_EQ(reproduction.done(), 2u);
    std::filesystem::remove(runs[0].result);
    if (damage == std::string("half")) std::ofstream(runs[0].result) << "{";
    Labels failed;
    const auto on_failure = [&](const PlannedRun& run, const std::string& reason) {
      failed.push_back(run.label);
      EXPECT_NE(reason.find(runs[0].result.string()), std::string::npos) << reason;
    };
    EXPECT_EQ(reproduction.run(1, {.on_failure = on_failure}), ReproduceOutcome::some_failed) << damage;
    EXPECT_EQ(failed, (Labels{"pair/sw-ovq-3", "pair/sw-ovq-4"})) << damage;
  }
}

TEST_F(Plan, TheNextRateIsAsFarAsTheLast) {
  const Experiment experiment = plan(short_set()).front().experiment;
  const auto next = [&](const std::vector<double>& accuracies) {
    RateSearch search{.learning_rates = {2e-3, 4e-3, 8e-3}, .extend = 1};
    std::vector<ExperimentResult> tuning;
    for (size_t i = 0; i < accuracies.size(); ++i) {
      tuning.push_back(result_of(experiment, 0, accuracies[i]));
      tuning.back().options.learning_rate = search.learning_rates[i];
    }
    return next_rate(search, tuning);
  };
  EXPECT_EQ(next({0.9, 0.5, 0.4}), 1e-3);
  EXPECT_EQ(next({0.3, 0.5, 0.4}), std::nullopt);
  EXPECT_EQ(next({0.3, 0.5, 0.6}), 16e-3);
  EXPECT_EQ(next({0.3, 0.5}), std::nullopt);  // 0.008 diverged
  EXPECT_EQ(next({}), std::nullopt);
  EXPECT_EQ(next_rate({.learning_rates = {2e-3, 4e-3}}, {result_of(experiment, 0, 0.5)}), std::nullopt);
}

TEST_F(Plan, AResultIsAFileWithALineForEachEvaluation) {
  const PlannedRun run = plan(short_set()).front();
  ExperimentResult result = result_of(run.experiment, 3, 0.5);
  result.evaluations.push_back(result.evaluations.front());
  result.evaluations[1]["length"] = 32;
  const std::string text = to_file_text(result);
  EXPECT_EQ(json::parse(text), to_json(result));
  int64_t lines = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines += line.starts_with("  {") ? 1 : 0;
  EXPECT_EQ(lines, 2);
}

TEST(CorpusOfResults, IsTheSameTextWhateverElseIsSaidOfIt) {
  const json before = {{"tokenizer", "ab"}, {"train", {{"tokens", 5}, {"documents", 2}}}};
  json now = before;
  now["train"]["bytes"] = 20;
  now["sources"] = {{"train", {{"package", "1.0"}}}};
  EXPECT_TRUE(same_text(now, before));
  now["train"]["tokens"] = 6;
  EXPECT_FALSE(same_text(now, before));
  EXPECT_FALSE(same_text({{"tokenizer", "cd"}}, {{"tokenizer", "ab"}}));
}

TEST_F(Plan, ARunIsPlannedAgainFromItsResultAlone) {
  const PlannedRun run = plan(short_set()).front();
  store(run, result_of(run.experiment, 3, 0.5));
  const ExperimentResult before = read_result(run.result);
  const PlannedRun again = planned_again(before, directory_.path() / "again");
  EXPECT_EQ(differing_options(again.options(), run.options()), "");
  EXPECT_EQ(again.experiment.evaluations, run.experiment.evaluations);
  EXPECT_EQ(again.directory, directory_.path() / "again/pair/sw-ovq-3");
  EXPECT_FALSE(again.finished());
}

}  // namespace
}  // namespace ovq::experiments::test
