// Sets of experiments: what experiments inherit from their group, and the errors of invalid files.
#include "ovq/experiments/experiment_set.h"

#include <gtest/gtest.h>

#include <functional>

#include "ovq/base/error.h"
#include "tests/experiments/sets.h"

namespace ovq::experiments::test {
namespace {

TEST(ExperimentSet, ExperimentsStandOverTheirGroup) {
  const TemporaryDirectory directory;
  const ExperimentSet set = read_experiment_set(write_set(directory, short_set()));
  EXPECT_EQ(set.name, "short");
  ASSERT_EQ(set.experiments.size(), 2u);
  const Experiment &ovq = set.experiments[0], &nope = set.experiments[1];
  EXPECT_EQ(ovq.id(), "pair/sw-ovq");
  EXPECT_EQ(ovq.claims, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(nope.claims, (std::vector<int64_t>{1}));
  EXPECT_EQ(ovq.seeds, (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(nope.seeds, (std::vector<uint64_t>{3}));
  EXPECT_EQ(nope.shows, "two runs");

  const train::RunOptions options = ovq.run_options(4);
  EXPECT_EQ(options.model, "sw-ovq");
  EXPECT_EQ(options.steps, 4);
  EXPECT_EQ(options.seed, 4u);
  EXPECT_EQ(options.task_options["vocab"], 64);
  EXPECT_EQ(options.task_options["key_length"], 1);
  EXPECT_GT(options.learning_rate, 0);  // the preset's
  EXPECT_EQ(ovq.run_options(4, 0.5).learning_rate, 0.5);
  EXPECT_EQ(nope.run_options(3).steps, 5);

  ASSERT_EQ(ovq.evaluations.size(), 2u);
  EXPECT_EQ(ovq.evaluations[0].keep, (std::vector<double>{1, 0.2}));
  EXPECT_EQ(ovq.evaluations[1].centroids, (std::vector<int64_t>{8}));
  EXPECT_EQ(requests_from_json(to_json(ovq.evaluations), "test", ""), ovq.evaluations);
  // Without dictionaries both evaluations are the same.
  ASSERT_EQ(nope.evaluations.size(), 1u);
  EXPECT_TRUE(nope.evaluations[0].keep.empty() && nope.evaluations[0].centroids.empty());
  EXPECT_EQ(nope.evaluations[0].lengths, (std::vector<int64_t>{16, 32}));
}

TEST(ExperimentSet, TheSearchHasOptionsOfItsOwn) {
  const TemporaryDirectory directory;
  json set = short_set();
  set["groups"][0]["search"] = {{"learning_rates", {1e-3}}, {"seeds", {0}}, {"options", {{"steps", 2}}}};
  const Experiment ovq = read_experiment_set(write_set(directory, set)).experiments[0];
  EXPECT_EQ(ovq.search_options(0, 1e-3).steps, 2);
  EXPECT_EQ(ovq.search_options(0, 1e-3).learning_rate, 1e-3);
  EXPECT_EQ(ovq.search_options(0, 1e-3).task_options["key_length"], 1);
  EXPECT_EQ(ovq.run_options(3).steps, 4);
}

// The options of a corpus are known before the corpus exists.
TEST(ExperimentSet, ACorpusNeedNotBeThere) {
  const TemporaryDirectory directory;
  const json text = json::parse(R"({"corpus": {"vocab": 300}, "groups": [{
    "name": "books", "seeds": [3], "options": {"task": "text", "task_options": {"bin": 16}},
    "evaluations": [{"lengths": [64], "rows": 4}],
    "experiments": [{"name": "sw-ovq", "options": {"model": "sw-ovq"}}]}]})");
  const ExperimentSet set = read_experiment_set(write_set(directory, text));
  ASSERT_TRUE(set.corpus);
  EXPECT_EQ(set.corpus->directory, "runs/short/corpus");
  EXPECT_FALSE(set.corpus->is_there());
  const train::RunOptions options = set.experiments[0].run_options(3);
  EXPECT_EQ(options.task_options["train"], "runs/short/corpus/train.tokens");
  EXPECT_EQ(options.task_options["bin"], 16);
  EXPECT_EQ(set.experiments[0].model_config(options).vocab_size, 300);

  json other = text;
  other["groups"][0]["options"]["task"] = "recall";
  other["groups"][0]["options"]["task_options"] = json::object();
  EXPECT_THROW(read_experiment_set(write_set(directory, other)), DataError);
}

TEST(ExperimentSet, SaysWhatIsWrongWithAFile) {
  const TemporaryDirectory directory;
  const auto error = [&](const std::function<void(json&)>& spoil) {
    json set = short_set();
    spoil(set["groups"][0]);
    const std::string file = write_set(directory, set).string();
    try {
      read_experiment_set(file);
    } catch (const DataError& found) {
      const std::string text = found.what(), start = "[" + file + "] ";
      return text.starts_with(start) ? text.substr(start.size()) : text;
    }
    return std::string("nothing thrown");
  };
  EXPECT_EQ(error([](json& group) { group["seed"] = 1; }),
            "unknown field of groups[0] \"seed\"; did you mean \"seeds\"?");
  EXPECT_EQ(error([](json& group) { group["experiments"][1]["option"] = 1; }),
            "unknown field of groups[0].experiments[1] \"option\"; did you mean \"options\"?");
  EXPECT_EQ(error([](json& group) { group["evaluations"][0]["length"] = 1; }),
            "unknown field of groups[0].evaluations[0] \"length\"; did you mean \"lengths\"?");
  EXPECT_EQ(error([](json& group) {
              group["evaluations"][0]["keep"] = {0.2, 0};
            }),
            "groups[0].evaluations[0].keep is [0.2,0]; must be a list of numbers above 0 and at most 1");
  EXPECT_EQ(error([](json& group) { group["evaluations"][0]["centroids"] = {4}; }),
            "groups[0].evaluations[0].centroids is [4]; must be absent where keep is given; use two evaluations");
  EXPECT_EQ(error([](json& group) { group["seeds"] = json::array(); }),
            "groups[0].seeds is []; must be a list of integers of at least 0");
  EXPECT_EQ(error([](json& group) { group["seeds"] = {-1}; }),
            "groups[0].seeds is [-1]; must be a list of integers of at least 0");
  EXPECT_EQ(error([](json& group) { group.erase("seeds"); }),
            "pair/sw-ovq: [experiment] seeds are missing; must be a list of integers of at least 0");
  EXPECT_EQ(error([](json& group) { group.erase("experiments"); }),
            "groups[0].experiments is null; must be a list of experiments");
  EXPECT_EQ(error([](json& group) { group["experiments"][1]["name"] = "a/b"; }),
            "groups[0].experiments[1].name is \"a/b\"; must be a name of letters, digits, '.', '-' and '_'");
  EXPECT_EQ(error([](json& group) { group["experiments"][1]["name"] = "sw-ovq"; }), "pair/sw-ovq is listed twice");
  // Options of a run, its model and its task.
  EXPECT_EQ(error([](json& group) { group["options"]["stps"] = 3; }),
            "pair/sw-ovq: [config] unknown field \"stps\"; did you mean \"steps\"?");
  EXPECT_EQ(error([](json& group) { group["experiments"][1]["options"]["model"] = "sw-nop"; }),
            "pair/sw-nope: unknown model \"sw-nop\"; did you mean \"sw-nope\"?");
  EXPECT_EQ(error([](json& group) { group["options"]["seed"] = 3; }),
            "pair/sw-ovq: [experiment] options.seed is given; leave it out: an experiment trains from its own "
            "seeds, for all its steps");
  // The search.
  const json rates = {1e-3, 2e-3};
  EXPECT_EQ(error([](json& group) {
              group["search"] = {{"seeds", {0}}};
            }),
            "groups[0].search.learning_rates is null; must be a list of positive numbers");
  EXPECT_EQ(error([&](json& group) {
              group["search"] = {{"learning_rates", rates}, {"seeds", {0, 3}}};
            }),
            "pair/sw-ovq: [experiment] seed 3 is used both for the search and for reported runs; use different seeds");
  EXPECT_EQ(error([&](json& group) {
              group["search"] = {{"learning_rates", rates}, {"seeds", {0}}};
              group["options"]["learning_rate"] = 1e-3;
            }),
            "pair/sw-ovq: [experiment] options.learning_rate is given; leave it out, the group's search finds it");
}

TEST(ExperimentSet, SaysWhatIsNoSet) {
  const TemporaryDirectory directory;
  EXPECT_THROW(read_experiment_set(directory.path() / "none.json"), DataError);
  const std::filesystem::path file = directory.path() / "cut.json";
  std::ofstream(file) << R"({"groups": [)";
  EXPECT_THROW(read_experiment_set(file), DataError);
  EXPECT_THROW(read_experiment_set(write_set(directory, json::array())), DataError);
  EXPECT_THROW(read_experiment_set(write_set(directory, {{"groups", json::array()}})), DataError);
}

TEST(ExperimentSet, ThoseOfTheRepositoryAreSound) {
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(OVQ_EXPERIMENTS)) {
    if (entry.is_directory()) continue;  // a report's claims
    EXPECT_FALSE(read_experiment_set(entry.path()).experiments.empty()) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace ovq::experiments::test
