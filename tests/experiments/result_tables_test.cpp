// Results as files and as tables.
#include "ovq/experiments/result_tables.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ovq/base/error.h"
#include "tests/experiments/sets.h"

namespace ovq::experiments::test {
namespace {

Experiment first_experiment() {
  const TemporaryDirectory directory;
  Experiment first = read_experiment_set(write_set(directory, short_set())).experiments.front();
  first.options["learning_rate"] = 2e-3;
  return first;
}

TEST(Results, AFileHoldsAllOfThem) {
  const TemporaryDirectory directory;
  ExperimentResult result = result_of(first_experiment(), 3, 0.5);
  result.search = json::array({{{"learning_rate", 1e-3}}});
  const auto stored = [&] {
    std::ofstream(directory.path() / "x.json") << to_json(result);
    return to_json(read_result(directory.path() / "x.json"));
  };
  EXPECT_EQ(stored(), to_json(result));
  result.commit.clear();  // of a run that already existed
  result.search = json();
  result.codebooks = {{{"step", 1}, {"similarity", 0.5}, {"unused", 0}}};
  EXPECT_EQ(stored(), to_json(result));
  std::ofstream(directory.path() / "x.json") << R"({"group": "pair"})";
  EXPECT_THROW(read_result(directory.path() / "x.json"), DataError);
  EXPECT_THROW(read_result(directory.path() / "none.json"), DataError);
}

TEST(Results, HaveSomeStepsOfCodebooks) {
  std::vector<json> metrics = {{{"kind", "step"}, {"step", 1}}, {{"kind", "evaluation"}, {"step", 1}}};
  EXPECT_TRUE(codebook_curve(metrics).empty());
  for (int step = 2; step <= 500; ++step)
    metrics.push_back({{"kind", "step"}, {"step", step}, {"codebooks", {{"similarity", 0.25}, {"unused", 0.5}}}});
  const std::vector<json> curve = codebook_curve(metrics);
  EXPECT_GT(curve.size(), 40u);
  EXPECT_LE(curve.size(), 60u);
  EXPECT_EQ(curve.back(), (json{{"step", 500}, {"similarity", 0.25}, {"unused", 0.5}}));
}

TEST(Results, EveryNumberButTheSpeedIsCompared) {
  const ExperimentResult before = result_of(first_experiment(), 3, 0.5);
  ExperimentResult now = before;
  now.evaluations[0]["tokens_per_second"] = 1;
  EXPECT_TRUE(differences(before, now).empty());
  now.evaluations[0]["loss"] = std::nextafter(0.5, 1.0);
  EXPECT_EQ(differences(before, now),
            (std::vector<std::string>{"length 16, keep 0.2: loss was 0.5, is 0.5000000000000001"}));
  now.evaluations.clear();
  EXPECT_EQ(differences(before, now), (std::vector<std::string>{"length 16, keep 0.2: not evaluated"}));
}

TEST(Results, StatisticsOverSeeds) {
  EXPECT_EQ(statistic({}).runs, 0);
  const Statistic one = statistic({0.25});
  EXPECT_EQ(one.mean, 0.25);
  EXPECT_EQ(one.deviation, 0);
  const Statistic three = statistic({1, 2, 6});
  EXPECT_DOUBLE_EQ(three.mean, 3);
  EXPECT_DOUBLE_EQ(three.deviation, std::sqrt(7.0));  // (4 + 1 + 9) / 2
  EXPECT_EQ(three.runs, 3);
}

TEST(Results, ATableHasALineForEachExperimentAndDictionary) {
  const Experiment experiment = first_experiment();
  ExperimentResult first = result_of(experiment, 3, 0.5), second = result_of(experiment, 4, 0.75);
  json by_size = first.evaluations[0];
  by_size.erase("asked_keep");
  by_size["length"] = 2048;
  first.evaluations.push_back(by_size);
  Experiment other = experiment;
  other.name = "another";
  EXPECT_EQ(to_markdown({first, second, result_of(other, 3, 1)}),
            "### pair: two runs\n"
            "\n"
            "| accuracy | dictionary | 16 | 2,048 | state |\n"
            "|---|---|---|---|---|\n"
            "| sw-ovq | keep 0.2 | 0.625 ± 0.177 | | 1.5 kB |\n"
            "| sw-ovq | N 4 | | 0.500 | 1.5 kB |\n"
            "| another | keep 0.2 | 1.000 | | 1.5 kB |\n"
            "\n"
            "- another: seeds 3; 4 steps, 0.0M tokens at rate 0.002, 2 s of one core\n"
            "- sw-ovq: seeds 3, 4; 4 steps, 0.0M tokens at rate 0.002, 2 s of one core\n"
            "\n");
}

TEST(Results, LossesOfTextSayHowManyBytesATokenHas) {
  ExperimentResult result = result_of(first_experiment(), 3, 0.5);
  result.metric = "loss";
  EXPECT_EQ(to_markdown({result}).find("bytes on average"), std::string::npos);
  result.corpus = {{"valid", {{"tokens", 1000}, {"documents", 2}, {"bytes", 2000}}}};
  const std::string line = "A token has 2.000 bytes on average: bits per byte are 0.721 times the loss.\n";
  EXPECT_NE(to_markdown({result}).find(line), std::string::npos);
  result.corpus["valid"].erase("bytes");  // as in older results
  EXPECT_EQ(to_markdown({result}).find("bytes on average"), std::string::npos);
}

TEST(Results, DifferencesAreTakenSeedBySeed) {
  const Experiment experiment = first_experiment();
  Experiment other = experiment;
  other.name = "another";
  ExperimentResult alone = result_of(other, 5, 1);  // has no counterpart
  ExperimentResult longer = result_of(other, 3, 1);
  longer.evaluations.push_back(longer.evaluations[0]);
  longer.evaluations.back()["length"] = 2048;  // neither has this length
  EXPECT_EQ(to_markdown({result_of(experiment, 3, 0.5), result_of(experiment, 4, 0.75), longer,
                         result_of(other, 4, 0.5), alone},
                        {.against = "sw-ovq"}),
            "### pair: two runs\n"
            "\n"
            "| accuracy minus that of sw-ovq | dictionary | 16 | state |\n"
            "|---|---|---|---|\n"
            "| another | keep 0.2 | +0.125 [-4.640, +4.890] | 1.5 kB |\n"
            "\n"
            "- another: seeds 3, 4; 4 steps, 0.0M tokens at rate 0.002, 2 s of one core\n"
            "\n");
}

TEST(Results, GroupsOfTargetsHaveColumnsOfTheirOwn) {
  const auto with_groups = [](uint64_t seed, double shift) {
    ExperimentResult result = result_of(first_experiment(), seed, 0.5);
    result.evaluations[0]["groups"] = {{{"group", 0}, {"accuracy", 0.25 + shift}}, {{"group", 1}, {"accuracy", 0.75}}};
    result.evaluations.push_back(result.evaluations[0]);  // a longer one has the same groups
    result.evaluations[1]["length"] = 32;
    result.evaluations[1]["groups"].push_back({{"group", 2}, {"accuracy", 1.0}});
    return result;
  };
  ExperimentResult other = with_groups(3, 0.125);
  other.name = "another";
  const std::vector<ExperimentResult> results = {with_groups(3, 0), other};
  const std::string table = to_markdown(results, {.groups = {0, 2, 7}});
  EXPECT_NE(table.find("| dictionary | group 0 of 16 | group 2 of 32 | 16 | 32 | state |"), std::string::npos) << table;
  EXPECT_NE(table.find("| sw-ovq | keep 0.2 | 0.250 | 1.000 | 0.500 | 0.500 |"), std::string::npos) << table;
  const std::string differences = to_markdown(results, {.against = "sw-ovq", .groups = {0}});
  EXPECT_NE(differences.find("| another | keep 0.2 | +0.125 | +0.000 | +0.000 |"), std::string::npos) << differences;
}

TEST(Results, IntervalsAreStudents) {
  EXPECT_NEAR(half_interval({.mean = 5, .deviation = 2, .runs = 4}), 3.182, 1e-9);
  EXPECT_NEAR(half_interval({.deviation = 1, .runs = 3}), 4.303 / std::sqrt(3.0), 1e-9);
  EXPECT_NEAR(half_interval({.deviation = 1, .runs = 12}) * std::sqrt(12.0), 2.201, 3e-3);
  EXPECT_NEAR(half_interval({.deviation = 1, .runs = 21}) * std::sqrt(21.0), 2.086, 3e-3);
  EXPECT_TRUE(std::isinf(half_interval({.runs = 1})));
}

// Full attention has no dictionary: rows with a dictionary are compared with it at every size, but not the reverse.
TEST(Results, DifferencesToWhatHasNoDictionary) {
  const Experiment experiment = first_experiment();
  Experiment other = experiment;
  other.name = "sw-nope";
  ExperimentResult full = result_of(other, 3, 0.75);
  full.evaluations[0].erase("asked_keep");
  full.evaluations[0]["centroids"] = 0;
  const std::vector<ExperimentResult> results = {result_of(experiment, 3, 0.5), full};
  EXPECT_NE(to_markdown(results, {.against = "sw-nope"}).find("| sw-ovq | keep 0.2 | -0.250 |"), std::string::npos)
      << to_markdown(results, {.against = "sw-nope"});
  EXPECT_EQ(to_markdown(results, {.against = "sw-ovq"}), "");
}

TEST(Results, AreFoundInADirectoryWithoutThoseOfSearches) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path() / "pair/search");
  for (const char* name : {"b", "a", "search/c"})
    std::ofstream(directory.path() / "pair" / (std::string(name) + ".json"))
        << to_json(result_of(first_experiment(), *name, 0.5));
  const auto files = result_files(directory.path());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(read_result(files[0]).options.seed, uint64_t{'a'});
  EXPECT_EQ(read_result(files[1]).options.seed, uint64_t{'b'});
}

}  // namespace
}  // namespace ovq::experiments::test
