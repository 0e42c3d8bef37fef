// Training runs: exact resume, damaged checkpoints, every model on every task.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ovq/base/error.h"
#include "ovq/models/weights.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

struct Trained {
  Outcome outcome;
  std::vector<double> losses;
  models::NamedTensors weights;
  std::vector<std::string> warnings;
};

// Trains, stopping after `stop_after` steps of this call (0: not).
Trained train(const train::Run& run, int64_t stop_after = 0) {
  Trained result;
  int64_t steps = 0;
  TrainHooks hooks;
  hooks.on_step = [&](const StepReport&) { ++steps; };
  hooks.stop = [&] { return stop_after > 0 && steps >= stop_after; };
  hooks.warn = [&](const std::string& text) { result.warnings.push_back(text); };
  Trainer trainer(run, hooks);
  result.outcome = trainer.train();
  result.losses = losses(run);
  for (const auto& [name, tensor] : models::named_tensors(trainer.model())) {
    result.weights[name] = tensor.detach().clone();
  }
  return result;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, tensor] : a.weights) EXPECT_TRUE(at::equal(tensor, b.weights.at(name))) << name;
}

class Models : public testing::TestWithParam<std::string> {};

TEST_P(Models, TrainOnEveryTask) {
  const TemporaryDirectory directory;
  for (const char* file : {"train.txt", "test.txt"}) {
    std::ofstream out(directory.path() / file);
    for (int i = 0; i < 400; ++i) out << "the quick brown fox jumps over the lazy dog " << i << " " << file << "\n";
  }
  for (const std::string& task : tasks::task_names()) {
    SCOPED_TRACE(task);
    RunOptions options = mini_run(task, GetParam());
    if (task == "text") {
      options.task_options["train"] = (directory.path() / "train.txt").string();
      options.task_options["test"] = (directory.path() / "test.txt").string();
    }
    const Trained result = train(train::Run::create(directory.path() / task, options));
    EXPECT_EQ(result.outcome, Outcome::finished);
    ASSERT_EQ(result.losses.size(), 20u);
    for (const double loss : result.losses) EXPECT_TRUE(std::isfinite(loss));
    if (task != "recall") continue;
    const auto mean = [&](size_t first) {
      return std::accumulate(result.losses.begin() + first, result.losses.begin() + first + 4, 0.0) / 4;
    };
    EXPECT_LT(mean(16), mean(0));
  }
}

TEST_P(Models, ResumeIsExact) {
  const TemporaryDirectory directory;
  const RunOptions options = mini_run("recall", GetParam());
  const Trained whole = train(train::Run::create(directory.path() / "whole", options));
  const train::Run run = train::Run::create(directory.path() / "parts", options);
  EXPECT_EQ(train(run, 3).outcome, Outcome::stopped);
  // The second time where vq's warm-up ends.
  for (const int64_t stop : {5, 8}) {
    EXPECT_EQ(train(train::Run::open(run.path()), stop).outcome, Outcome::stopped);
  }
  expect_same(train(train::Run::open(run.path())), whole);
}

INSTANTIATE_TEST_SUITE_P(All, Models, testing::ValuesIn(models::pattern_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

void flip_byte(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-100, std::ios::end);
  const int byte = stream.get();
  stream.seekp(-100, std::ios::end);
  stream.put(static_cast<char>(byte ^ 1));
}

TEST(Training, MetricsTellOfCodebooksOnceTheyAreUsed) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", mini_run("recall", "sw-vq"));
  train(run);
  constexpr int64_t kWarmup = 5;  // of miniatures
  for (const json& line : run.metrics()) {
    if (line.at("kind") != "step") continue;
    ASSERT_EQ(line.contains("codebooks"), line.at("step") > kWarmup) << line;
    if (!line.contains("codebooks")) continue;
    EXPECT_GT(line["codebooks"].at("similarity"), 0.1);
    EXPECT_LE(line["codebooks"].at("similarity"), 1.0);
    EXPECT_EQ(line["codebooks"].at("unused"), 0.0);  // a hundred steps have not passed
  }
}

TEST(Checkpoints, DamagedNewestFallsBackToTheOneBefore) {
  const TemporaryDirectory directory;
  const RunOptions options = mini_run("recall", "sw-ovq");
  const Trained whole = train(train::Run::create(directory.path() / "whole", options));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const train::Run run = train::Run::create(directory.path() / file, options);
    train(run, 12);  // checkpoints of steps 10 and 12
    flip_byte(newest_checkpoint(run.path()) / file);
    const Trained resumed = train(run);
    ASSERT_EQ(resumed.warnings.size(), 1u);
    EXPECT_NE(resumed.warnings[0].find("damaged"), std::string::npos) << resumed.warnings[0];
    EXPECT_NE(resumed.warnings[0].find("step-000012"), std::string::npos) << resumed.warnings[0];
    expect_same(resumed, whole);
  }
}

// All readers of a run's checkpoints skip the same damaged ones.
TEST(Checkpoints, AllReadersPassOverDamage) {
  const TemporaryDirectory directory;
  const RunOptions options = mini_run("recall", "sw-ovq");
  const auto spoil_config = [](const std::filesystem::path& file) {
    json config = models::to_json(models::load_config(file));
    config["mixers"]["sw"]["window"] = 9;
    std::ofstream(file) << config;
  };
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
    const train::Run run = train::Run::create(directory.path() / file, options);
    train(run, 12);  // checkpoints of steps 10 and 12
    const std::filesystem::path newest = newest_checkpoint(run.path()), before = newest.parent_path() / "step-000010";
    EXPECT_EQ(newest.filename(), "step-000012");
    if (std::string(file) == "config.json")
      spoil_config(newest / file);
    else
      flip_byte(newest / file);
    std::vector<std::string> warnings;
    EXPECT_EQ(newest_checkpoint(run.path(), [&](const std::string& text) { warnings.push_back(text); }), before);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("step-000012"), std::string::npos) << warnings[0];
    std::filesystem::remove(before / "model.safetensors");
    try {
      newest_checkpoint(run.path());
      FAIL() << "found one";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), run.path().string() + " has only damaged checkpoints");
    }
  }
}

// A run that was given its task does not read the text again.
TEST(Training, ReadsTheTextOnce) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("text", "sw-nope");
  for (const char* split : {"train", "test"}) {
    const std::filesystem::path file = directory.path() / (std::string(split) + ".txt");
    for (int i = 0; i < 100; ++i) std::ofstream(file, std::ios::app) << split << " line " << i << "\n";
    options.task_options[split] = file.string();
  }
  options.task_options["min_document"] = 0;
  auto task = make_task(options);
  check_task(*task, options);
  for (const char* split : {"train", "test"}) std::filesystem::remove(options.task_options[split].get<std::string>());
  const train::Run run = train::Run::create(directory.path() / "run", options, std::move(task));
  Trainer trainer(run, {});
  EXPECT_EQ(trainer.train(), Outcome::finished);
  EXPECT_THROW(check_task(*make_task(options), options), DataError);
}

TEST(Checkpoints, OfAnotherModelIsAnError) {
  const TemporaryDirectory directory;
  const train::Run mine = train::Run::create(directory.path() / "mine", mini_run("recall", "sw-ovq"));
  const train::Run other = train::Run::create(directory.path() / "other", mini_run("recall", "gdn"));
  train(mine, 5);
  train(other, 5);
  std::filesystem::remove_all(checkpoint_directory(mine.path()));
  std::filesystem::copy(checkpoint_directory(other.path()), checkpoint_directory(mine.path()),
                        std::filesystem::copy_options::recursive);
  EXPECT_THROW(train(mine), std::runtime_error);
  EXPECT_TRUE(std::filesystem::exists(newest_checkpoint(mine.path())));
}

TEST(Training, StopsWhenNothingIsFinite) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("recall", "sw-nope");
  options.learning_rate = 1e30;
  options.clip = 0;
  options.warmup = 0;
  const train::Run run = train::Run::create(directory.path() / "run", options);
  try {
    train(run);
    FAIL() << "went on";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("not finite"), std::string::npos) << error.what();
  }
}

TEST(Training, AccumulationChangesNothingButRounding) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("recall", "sw-ovq");
  options.steps = 3;
  const Trained whole = train(train::Run::create(directory.path() / "whole", options));
  options.accumulate = 3;
  const Trained parts = train(train::Run::create(directory.path() / "parts", options));
  for (size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(whole.losses[i], parts.losses[i], 1e-4);
}

TEST(Training, StopsAtTheTarget) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("recall", "sw-nope");
  options.target = 1e-9;
  options.eval_every = 2;
  const auto model = mini_run("recall", "sw-nope");
  const Trained result = train(train::Run::create(directory.path() / "run", options));
  if (result.outcome == Outcome::target_reached) {
    EXPECT_LT(result.losses.size(), 20u);
  }
}

TEST(Training, RefusesADirectoryThatHoldsARun) {
  const TemporaryDirectory directory;
  train::Run::create(directory.path() / "run", mini_run("recall", "sw-nope"));
  EXPECT_THROW(train::Run::create(directory.path() / "run", mini_run("recall", "sw-nope")), std::runtime_error);
  std::ofstream(directory.path() / "file") << "x";
  EXPECT_THROW(train::Run::create(directory.path() / "file" / "run", mini_run("recall", "sw-nope")),
               std::runtime_error);
  EXPECT_THROW(train::Run::open(directory.path() / "none"), std::runtime_error);
}

TEST(Options, RoundTripAndErrors) {
  const RunOptions options = mini_run("recall", "sw-ovq");
  EXPECT_EQ(to_json(run_options_from_json(to_json(options))), to_json(options));
  const auto message = [](const json& object) -> std::string {
    try {
      resolved(run_options_from_json(object));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({{"stepps", 3}}).find("steps"), std::string::npos);
  EXPECT_NE(message({{"steps", -3}}).find("steps is -3"), std::string::npos);
  EXPECT_NE(message({{"model", "sw-ovk"}}).find("sw-ovq"), std::string::npos);
  EXPECT_NE(message({{"task", "recal"}}).find("recall"), std::string::npos);
  EXPECT_NE(message({{"scale", "smal"}}).find("small"), std::string::npos);
}

// Splitting a row into pieces and batching rows change no prediction and hardly a loss.
TEST(Evaluate, StreamsTheSameInAnyPieces) {
  for (const char* pattern : {"sw-ovq", "sw-nope", "gdn"}) {
    const RunOptions options = mini_run("recall", pattern);
    const auto task = make_task(options);
    const auto model = models::make_model(model_config(options, task->vocab()), 3);
    const Evaluation whole = evaluate(*model, *task, {.length = 96, .rows = 6, .batch = 6, .piece = 1000});
    for (const int64_t piece : {1, 7, 64}) {
      const Evaluation pieces = evaluate(*model, *task, {.length = 96, .rows = 6, .batch = 4, .piece = piece});
      EXPECT_EQ(pieces.total.targets, whole.total.targets);
      EXPECT_NEAR(pieces.total.loss(), whole.total.loss(), 1e-4) << pattern << " " << piece;
    }
  }
}

}  // namespace
}  // namespace ovq::train::test
