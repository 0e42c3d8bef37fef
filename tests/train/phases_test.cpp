// Runs of several phases.
#include "ovq/train/phases.h"

#include <gtest/gtest.h>

#include "ovq/models/weights.h"
#include "tests/ops/tensor_checks.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

using ops::test::message_of;

RunOptions phased(const json& phases, const std::string& pattern = "sw-ovq") {
  RunOptions options = mini_run("recall", pattern);
  options.steps = 0;
  options.phases = phases_from_json(phases);
  return resolved(options);
}

const json kThree = {{{"steps", 6}, {"lengths", {24}}, {"centroids", 4}},
                     {{"steps", 7},
                      {"lengths", {24, 72}},
                      {"centroids", 40},
                      {"learning_rate", 1e-3},
                      {"warmup", 2},
                      {"tokens_per_step", 300}},
                     {{"steps", 5}, {"min_learning_rate", 1e-4}}};

// Trains for at most `steps` steps; returns the model's tensors.
models::NamedTensors trained(const train::Run& run, int64_t steps = 1000) {
  int64_t done = 0;
  TrainHooks hooks;
  hooks.on_step = [&](const StepReport&) { ++done; };
  hooks.stop = [&] { return done >= steps; };
  Trainer trainer(run, hooks);
  trainer.train();
  models::NamedTensors weights;
  for (const auto& [name, tensor] : models::named_tensors(trainer.model())) weights[name] = tensor.detach().clone();
  return weights;
}

void expect_equal(const models::NamedTensors& a, const models::NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

// Metrics without the time they took.
std::vector<json> timeless(const train::Run& run) {
  std::vector<json> lines = run.metrics();
  for (json& line : lines) line.erase("seconds");
  return lines;
}

TEST(Phases, ResumeIsExactAtAndAroundTheBorders) {
  const TemporaryDirectory directory;
  const RunOptions options = phased(kThree);
  EXPECT_EQ(options.steps, 18);
  const train::Run whole = train::Run::create(directory.path() / "whole", options);
  const models::NamedTensors expected = trained(whole);
  ASSERT_EQ(losses(whole).size(), 18u);
  // Stops before, at and after the borders at 6 and 13.
  for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{{6, 7}, {5, 2, 5, 2}, {13}}) {
    const train::Run run = train::Run::create(directory.path() / ("parts-" + std::to_string(pieces.size())), options);
    for (const int64_t steps : pieces) trained(train::Run::open(run.path()), steps);
    expect_equal(trained(train::Run::open(run.path())), expected);
    EXPECT_EQ(timeless(run), timeless(whole));
  }
}

TEST(Phases, EachHasItsOwnLengthsSizesAndSchedule) {
  const TemporaryDirectory directory;
  RunOptions options = phased(kThree);
  options.eval_every = 6;
  const train::Run run = train::Run::create(directory.path() / "run", options);
  std::vector<int64_t> sizes;
  TrainHooks hooks;
  Trainer* trainer = nullptr;
  hooks.on_step = [&](const StepReport& report) {
    EXPECT_EQ(report.phase, report.step <= 6 ? 0 : report.step <= 13 ? 1 : 2);
    sizes.push_back(trainer->model().config().centroids().at("ovq"));
  };
  Trainer made(run, hooks);
  trainer = &made;
  ASSERT_EQ(made.train(), Outcome::finished);
  ASSERT_EQ(sizes.size(), 18u);
  EXPECT_EQ(sizes[5], 4);
  EXPECT_EQ(sizes[6], 40);
  EXPECT_EQ(sizes[13], 16);  // the model's own

  const Schedule first{2e-3, 1e-5, 4, 6}, second{1e-3, 1e-5, 2, 7}, third{2e-3, 1e-4, 4, 5};
  int64_t step = 0;
  for (const json& line : run.metrics()) {
    if (line.at("kind") == "evaluation") {
      const std::map<int64_t, std::array<int64_t, 3>> wanted = {{6, {0, 24, 4}}, {12, {1, 72, 40}}, {18, {2, 48, 16}}};
      const auto& [phase, length, centroids] = wanted.at(line.at("step"));
      EXPECT_EQ(line.at("phase"), phase);
      EXPECT_EQ(line.at("length"), length);
      EXPECT_EQ(line.at("centroids"), centroids);
      continue;
    }
    ++step;
    EXPECT_EQ(line.at("step"), step);
    EXPECT_EQ(line.at("phase"), step <= 6 ? 0 : step <= 13 ? 1 : 2);
    EXPECT_DOUBLE_EQ(line.at("rate").get<double>(), step <= 6    ? first.rate(step - 1)
                                                    : step <= 13 ? second.rate(step - 7)
                                                                 : third.rate(step - 14));
    if (step > 6 && step <= 13) {
      EXPECT_LT(line.at("tokens"), 400);
    }
  }
  EXPECT_EQ(step, 18);
  EXPECT_EQ(models::load_config(newest_checkpoint(run.path()) / "config.json").centroids().at("ovq"), 16);
}

TEST(Phases, OneIsTheSameAsNone) {
  const TemporaryDirectory directory;
  const train::Run none = train::Run::create(directory.path() / "none", mini_run("recall", "sw-ovq"));
  const train::Run one = train::Run::create(directory.path() / "one", phased(json::array({{{"steps", 20}}})));
  expect_equal(trained(none), trained(one));
  EXPECT_EQ(timeless(none), timeless(one));
}

// A good score on the short contexts of the first phase must not end the run.
TEST(Phases, TheTargetCountsInTheLast) {
  const TemporaryDirectory directory;
  RunOptions options = phased(json::array({{{"steps", 4}}, {{"steps", 16}}}));
  options.task = "text";
  options.task_options = {{"scale", "tiny"}, {"min_document", 0}};
  for (const char* split : {"train", "test"}) {
    const std::filesystem::path file = directory.path() / split;
    std::ofstream(file) << std::string(400, 'x') << split;
    options.task_options[split] = file.string();
  }
  options.target = 1e6;  // any loss is good enough
  options.eval_every = 2;
  const train::Run run = train::Run::create(directory.path() / "run", options);
  Trainer trainer(run, {});
  EXPECT_EQ(trainer.train(), Outcome::target_reached);
  EXPECT_EQ(trainer.progress().step, 6);
}

TEST(Phases, RoundTrip) {
  const RunOptions options = phased(kThree);
  const json written = to_json(options);
  EXPECT_EQ(to_json(resolved(run_options_from_json(written))), written);
  EXPECT_EQ(written["phases"][2]["lengths"], (json{24, 48}));
  EXPECT_FALSE(written["phases"][2].contains("centroids"));
  EXPECT_EQ(to_json(phases_from_json(kThree)), kThree);
}

TEST(Phases, BadOnesAreNamed) {
  const auto error = [](const json& phases) { return message_of([&] { phases_from_json(phases); }); };
  const auto with = [&](const char* name, const json& value) {
    json phases = {{{"steps", 5}}, {{"steps", 5}}};
    phases[1][name] = value;
    return error(phases);
  };
  const std::string list = "; must be a list of phases such as {\"steps\": 500, \"centroids\": 256}";
  EXPECT_EQ(error(json::object()), "[config] phases is of type object" + list);
  EXPECT_EQ(error(json::array()), "[config] phases is an empty list" + list);
  EXPECT_EQ(error({3}), "[config] phases[0] is 3; must be an object");
  EXPECT_EQ(error({{{"lengths", {5}}}}), "[config] phases[0].steps is null; must be an integer of at least 1");
  EXPECT_EQ(with("steps", 0), "[config] phases[1].steps is 0; must be an integer of at least 1");
  EXPECT_EQ(with("steps", "x"), "[config] phases[1].steps is \"x\"; must be an integer of at least 1");
  EXPECT_EQ(with("lengths", json::array()),
            "[config] phases[1].lengths is []; must be a list of integers of at least 1");
  EXPECT_EQ(with("lengths", {4, 0}), "[config] phases[1].lengths is [4,0]; must be a list of integers of at least 1");
  EXPECT_EQ(with("centroids", 0), "[config] phases[1].centroids is 0; must be an integer of at least 1");
  EXPECT_EQ(with("learning_rate", 0), "[config] phases[1].learning_rate is 0.0; must be a positive number");
  EXPECT_EQ(with("min_learning_rate", -1),
            "[config] phases[1].min_learning_rate is -1.0; must be a number of at least 0");
  EXPECT_EQ(with("warmup", -1), "[config] phases[1].warmup is -1; must be an integer of at least 0");
  EXPECT_EQ(with("tokens_per_step", 0), "[config] phases[1].tokens_per_step is 0; must be an integer of at least 1");
  EXPECT_EQ(with("centroid", 8), "[config] unknown field of phases[1] \"centroid\"; did you mean \"centroids\"?");

  RunOptions both = mini_run("recall", "sw-ovq");
  both.phases = phases_from_json(kThree);
  const std::string conflict = "[config] steps is 20; the phases have 18: leave steps out";
  EXPECT_EQ(message_of([&] { resolved(both); }), conflict);
  EXPECT_EQ(message_of([&] { run_options_from_json({{"steps", 20}, {"phases", kThree}}); }), conflict);
  EXPECT_EQ(message_of([] { model_config(phased(kThree, "sw-nope"), 32); }),
            "[config] phases[0].centroids is 4; sw-nope has no OVQ-attention");
  const RunOptions short_one = phased({{{"steps", 5}}, {{"steps", 5}, {"lengths", {2}}}});
  EXPECT_EQ(message_of([&] { check_task(*make_task(short_one), short_one); }),
            "phases[1]: [mixture] length is 2; recall needs at least 6");
}

}  // namespace
}  // namespace ovq::train::test
