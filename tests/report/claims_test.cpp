// Claims as data: errors of invalid files, measured values, and the rules of decision.
#include "ovq/report/claims.h"

#include <gtest/gtest.h>

#include <fstream>

#include "ovq/base/error.h"
#include "ovq/report/report.h"
#include "tests/experiments/sets.h"

namespace ovq::report {
namespace {

using experiments::ExperimentResult;
using train::test::TemporaryDirectory;

json one_of_each() {
  return json::parse(R"({
    "charts": [{"name": "c", "title": "t", "x": {"of": "length", "label": "tokens", "spacing": "log2"},
                "y": {"of": "accuracy", "label": "accuracy"}, "rules": [{"x": 16, "label": "trained"}],
                "lines": [{"label": "a", "results": "set/pair/a", "centroids": [4, 8]},
                          {"label": "b", "results": "set/pair/b"}]}],
    "claims": [{"number": 1, "title": "t", "paper": "p", "charts": ["c"],
                "checks": [{"text": "a like b", "of": "accuracy", "value": {"results": "set/pair/a", "centroids": 8, "length": 16},
                            "is": "at least", "than": {"results": "set/pair/b", "length": 16}, "margin": 0.125}]}]})");
}

ClaimsFile read(const json& object) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() / "claims.json") << object;
  return read_claims(directory.path() / "claims.json");
}

// The error for a file in which one field has another value.
std::string error_of(const char* pointer, const json& value) {
  json object = one_of_each();
  object[json::json_pointer(pointer)] = value;
  try {
    read(object);
  } catch (const DataError& error) {
    return error.what();
  }
  return "nothing";
}

json evaluation(int64_t length, int64_t centroids, double accuracy) {
  return {{"length", length},
          {"centroids", centroids},
          {"options", json::object()},
          {"accuracy", accuracy},
          {"state_bytes", 100 * length}};
}

ExperimentResult run_with(std::vector<json> evaluations) { return {.evaluations = std::move(evaluations)}; }

Evidence two_experiments() {
  Evidence evidence;
  evidence.experiments["set/pair/a"] = {
      run_with({evaluation(16, 4, 0.25), evaluation(16, 8, 0.5), evaluation(32, 8, 0.25)}),
      run_with({evaluation(16, 4, 0.25), evaluation(16, 8, 0.75), evaluation(32, 8, 0.25)})};
  json by_share = evaluation(16, 4, 0.875);
  by_share["asked_keep"] = 0.5;
  evidence.experiments["set/pair/a"][0].evaluations.push_back(by_share);
  evidence.experiments["set/pair/b"] = {run_with({evaluation(16, 0, 0.75), evaluation(32, 0, 1)})};
  return evidence;
}

TEST(Claims, WhatIsWrongIsSaid) {
  const auto expect = [](const std::string& text, const char* pointer, const json& value) {
    const std::string error = error_of(pointer, value);
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect("charts[0].x.spacing is \"log3\"; must be one of", "/charts/0/x/spacing", "log3");
  expect("charts[0].x.of is \"size\"", "/charts/0/x/of", "size");
  expect("did you mean \"lines\"", "/charts/0/line", 1);
  expect("charts[0].title is \"\"", "/charts/0/title", "");
  expect("charts[0].lines[0].centroids is [4,\"x\"]; must be a number above 0 or a list of them",
         "/charts/0/lines/0/centroids", json::array({4, "x"}));
  expect("absent where keep is given", "/charts/0/lines/0/keep", 0.5);
  expect("or exactly one of inspect", "/charts/0/lines/0/inspect", "tiny/sw-ovq");
  expect("must end above its start", "/charts/0/y", {{"of", "loss"}, {"label", "l"}, {"from", 2}, {"to", 1}});
  expect("claims[0].number is 0", "/claims/0/number", 0);
  expect("claims[0].checks[0].is is \"more\"; must be one of \"at least\"", "/claims/0/checks/0/is", "more");
  expect("claims[0].checks[0].than is \"b\"; must be a quantity or a number", "/claims/0/checks/0/than", "b");
  expect("did you mean \"length\"", "/claims/0/checks/0/value/lenght", 16);
  expect("unknown chart", "/claims/0/charts/0", "d");
  expect("claim 1 is listed twice", "/claims/1", one_of_each()["claims"][0]);
  expect("chart c is listed twice", "/charts/1", one_of_each()["charts"][0]);
  expect("the name of a preset", "/charts/0/lines/1", {{"label", "l"}, {"inspect", "none"}, {"mixer", "ovq"}});
  expect("with one * in place", "/charts/0/lines/1", {{"label", "l"}, {"bench", "b"}, {"case", "T16"}});
  expect("an axis with from and to", "/charts/0/lines/1", {{"label", "l"}, {"bound", "slots"}, {"share", 0.5}});
  EXPECT_THROW(read("text"), DataError);
  EXPECT_THROW(read_claims("/nowhere/claims.json"), DataError);
}

TEST(Claims, ALineForEachDictionary) {
  const DrawnChart drawn = draw(read(one_of_each()).charts[0], two_experiments());
  ASSERT_EQ(drawn.figure.series.size(), 3u);
  EXPECT_EQ(drawn.figure.series[0].label, "a, N 4");
  EXPECT_EQ(drawn.figure.series[0].points.size(), 1u);
  const plot::Series& wide = drawn.figure.series[1];
  ASSERT_EQ(wide.points.size(), 2u);
  EXPECT_EQ(wide.points[0].x, 16);
  EXPECT_EQ(wide.points[0].y, 0.625);
  EXPECT_EQ(wide.points[0].runs, 2);
  EXPECT_DOUBLE_EQ(wide.points[0].deviation, 0.125 * std::sqrt(2));
  EXPECT_TRUE(drawn.missing.empty());
  EXPECT_EQ(draw(read(one_of_each()).charts[0], {}).missing, (std::vector<std::string>{"a, N 4", "a, N 8", "b"}));
}

TEST(Claims, AgainstTheBytesOfState) {
  Evidence evidence = two_experiments();
  evidence.experiments["set/pair/a"][0].evaluations[1]["state_bytes"] = 1700;  // the larger dictionary
  evidence.experiments["set/pair/a"].resize(1);
  const Quantity quantity{.results = "set/pair/a", .of = "accuracy", .length = 16};
  EXPECT_EQ(measure(quantity, Variable::state_bytes, {}, evidence), (Curve{{1600, {0.25}}, {1700, {0.5}}}));
}

TEST(Claims, ThePageBeginsWithWhatIsNoClaim) {
  json object = one_of_each();
  Evidence evidence = two_experiments();
  for (auto& [id, runs] : evidence.experiments) {
    for (ExperimentResult& run : runs) run.machine = {{"cpu", "one"}};
  }
  EXPECT_EQ(make_report(read(object), evidence).html.find("id=\"first\""), std::string::npos);
  object["first"] = {{"title", "Look here"}, {"note", "A note."}, {"charts", {"c"}}};
  object["first"]["checks"] = object["claims"][0]["checks"];
  const std::string html = make_report(read(object), evidence).html;
  EXPECT_LT(html.find("<h2>Look here</h2>"), html.find("chart-c"));
  EXPECT_LT(html.find("chart-c"), html.find("id=\"scoreboard\""));
  EXPECT_LT(html.find("a like b"), html.find("id=\"scoreboard\""));
  object["first"]["charts"] = {"d"};
  EXPECT_THROW(read(object), DataError);
  object["first"] = {{"note", "no title"}};
  EXPECT_THROW(read(object), DataError);
}

TEST(Claims, WhatIsLeftOpenIsAnError) {
  const Quantity open{.results = "set/pair/a", .of = "accuracy"};
  EXPECT_THROW(measure(open, Variable::length, {}, two_experiments()), DataError);                    // N 4 or 8?
  EXPECT_THROW(value_of({.results = "set/pair/b", .of = "accuracy"}, two_experiments()), DataError);  // which length?
  EXPECT_EQ(measure({.results = "set/pair/a", .of = "accuracy", .keep = 0.5}, Variable::length, {}, two_experiments()),
            (Curve{{16, {0.875}}}));
  EXPECT_FALSE(value_of({.results = "set/pair/b", .of = "similarity", .length = 16}, two_experiments()));
}

TEST(Claims, SharesOfOthers) {
  const auto b = std::make_shared<Quantity>(Quantity{.results = "set/pair/b", .of = "accuracy"});
  EXPECT_EQ(measure({.results = "set/pair/a", .of = "accuracy", .centroids = 8, .times = 3, .over = b},
                    Variable::length, {}, two_experiments()),
            (Curve{{16, {2, 3}}, {32, {0.75, 0.75}}}));
}

TEST(Claims, GroupsAreFound) {
  Evidence evidence;
  json line = evaluation(64, 0, 0.5);
  line["groups"] = json::array({{{"group", 0}, {"accuracy", 0.125}}, {{"group", 3}, {"accuracy", 1}}});
  evidence.experiments["s/g/n"] = {run_with({line})};
  const Quantity quantity{.results = "s/g/n", .of = "accuracy"};
  EXPECT_EQ(measure(quantity, Variable::group, {}, evidence), (Curve{{0, {0.125}}, {3, {1}}}));
  Quantity third = quantity;
  third.group = 3;
  EXPECT_EQ(value_of(third, evidence)->mean, 1);
}

TEST(Claims, ComputedAndTimed) {
  Evidence evidence;
  evidence.benches["b"] = json::parse(R"({"cases": [{"name": "x T8 y", "fused": {"seconds": 2}}, {"name": "x T16 y"},
                                                    {"name": "x T y"}, {"name": "x T9 yz"}]})");
  EXPECT_EQ(measure({.bench = "b", .of = "fused.seconds", .bench_case = "x T* y"}, Variable::length, {}, evidence),
            (Curve{{8, {2}}}));
  const Curve state = measure({.inspect = "tiny/sw-ovq", .of = "state_bytes", .mixer = "ovq", .centroids = 4},
                              Variable::length, {1 << 14, 1 << 16}, evidence);
  EXPECT_EQ(state.at(1 << 14), state.at(1 << 16));  // full by then
  EXPECT_EQ(measure({.bound = "slots", .of = "accuracy", .share = 0.5}, Variable::keep, {0.25, 0.75}, evidence),
            (Curve{{0.25, {0.5}}, {0.75, {1}}}));
  EXPECT_THROW(measure({.inspect = "tiny/sw-ovq", .of = "x", .mixer = "ovq"}, Variable::length, {64}, evidence),
               DataError);
}

Verdict verdict_with(Relation relation, double margin, const Evidence& evidence) {
  Claim claim = read(one_of_each()).claims[0];
  claim.checks[0].relation = relation;
  claim.checks[0].margin = margin;
  return judge(claim, evidence).verdict;
}

TEST(Claims, RulesDecide) {
  const Evidence evidence = two_experiments();  // 0.625 ± 0.177 of two against 0.75
  EXPECT_EQ(verdict_with(Relation::at_least, 0.125, evidence), Verdict::holds);
  EXPECT_EQ(verdict_with(Relation::at_least, 0.12, evidence), Verdict::fails);
  EXPECT_EQ(verdict_with(Relation::at_most, 0, evidence), Verdict::holds);
  EXPECT_EQ(verdict_with(Relation::above, 0, evidence), Verdict::fails);
  EXPECT_EQ(verdict_with(Relation::below, 0, evidence), Verdict::fails);  // within two standard errors, 0.25
  Evidence clear = evidence;
  clear.experiments["set/pair/b"][0].evaluations[0]["accuracy"] = 0.9;
  EXPECT_EQ(verdict_with(Relation::below, 0, clear), Verdict::holds);
  EXPECT_EQ(verdict_with(Relation::below, 0.3, clear), Verdict::fails);
  EXPECT_EQ(verdict_with(Relation::below, 0, {}), Verdict::open);
}

TEST(Evidence, RunsWithOtherOptionsAreNotAveraged) {
  const train::test::TemporaryDirectory directory;
  const auto experiment =
      experiments::read_experiment_set(experiments::test::write_set(directory, experiments::test::short_set()))
          .experiments.front();
  const std::filesystem::path results = directory.path() / "results/set";
  std::filesystem::create_directories(results);
  for (const uint64_t seed : {3, 4, 5}) {
    experiments::ExperimentResult result = experiments::test::result_of(experiment, seed, 0.5);
    if (seed == 4) result.options.steps = 9;
    std::ofstream(results / (std::to_string(seed) + ".json")) << to_json(result);
  }
  std::vector<std::string> warnings;
  const Evidence evidence =
      read_evidence(directory.path() / "results", [&](const std::string& text) { warnings.push_back(text); });
  EXPECT_EQ(evidence.runs(), 2u);
  EXPECT_EQ(warnings, (std::vector<std::string>{"set/pair/sw-ovq: seed 4 differs from the others in steps; left out"}));
}

TEST(Claims, OneSeedEachDecidesOnlyWithAMargin) {
  Evidence evidence = two_experiments();
  evidence.experiments["set/pair/a"].resize(1);
  evidence.experiments["set/pair/b"][0].evaluations[0]["accuracy"] = 0.9;
  EXPECT_EQ(verdict_with(Relation::below, 0, evidence), Verdict::open);
  EXPECT_EQ(verdict_with(Relation::below, 0.01, evidence), Verdict::holds);
  EXPECT_EQ(verdict_with(Relation::at_most, 0, evidence), Verdict::holds);
}

TEST(Claims, OneFailedCheckDecidesAndOneOpenLeavesOpen) {
  Claim claim = read(one_of_each()).claims[0];
  Check open = claim.checks[0];
  open.value.results = "set/pair/unknown";
  claim.checks.push_back(open);
  EXPECT_EQ(judge(claim, two_experiments()).verdict, Verdict::open);
  claim.checks[0].margin = 0;
  EXPECT_EQ(judge(claim, two_experiments()).verdict, Verdict::fails);
  claim.checks.clear();
  EXPECT_EQ(judge(claim, two_experiments()).verdict, Verdict::open);
}

TEST(Claims, TheRepositorysFileIsSound) {
  const ClaimsFile file = read_claims(OVQ_CLAIMS);
  EXPECT_EQ(file.claims.size(), 14u);
  // Every experiment named in claims is in a set, so that a command can run it.
  std::set<std::string> known;
  for (const auto& entry : std::filesystem::directory_iterator(OVQ_EXPERIMENTS)) {
    if (entry.path().extension() != ".json") continue;
    const auto set = experiments::read_experiment_set(entry.path());
    for (const auto& experiment : set.experiments) known.insert(set.name + "/" + experiment.id());
  }
  const auto expect_known = [&](const Quantity& quantity) {
    EXPECT_TRUE(quantity.results.empty() || known.contains(quantity.results)) << quantity.results;
  };
  for (const Chart& chart : file.charts) {
    for (const ChartLine& line : chart.lines) expect_known(line.quantity);
  }
  std::vector<Claim> all = file.claims;
  ASSERT_TRUE(file.first);
  all.push_back(*file.first);
  for (const Claim& claim : all) {
    for (const Check& check : claim.checks) {
      expect_known(check.value);
      if (check.than) expect_known(*check.than);
    }
  }
}

}  // namespace
}  // namespace ovq::report
