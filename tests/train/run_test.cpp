// A run as an object: what it knows without its data, and its checkpoints, which all readers find in the same way.
#include "ovq/train/run.h"

#include <gtest/gtest.h>

#include "ovq/base/error.h"
#include "ovq/models/inspect.h"
#include "ovq/train/comparison.h"
#include "ovq/train/sweep.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

// The message of the `Error` that the call throws.
template <class Error, class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Run, OpensWithoutReadingTheCorpus) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("text", "sw-ovq");
  options.task_options["train"] = (directory.path() / "none").string();  // does not exist
  options.task_options["test"] = (directory.path() / "none.txt").string();
  train::Run::create(directory.path() / "run", options);
  const train::Run run = train::Run::open(directory.path() / "run");
  EXPECT_EQ(run.label(), "sw-ovq [run]");
  EXPECT_EQ(run.description().name, "text");
  EXPECT_EQ(run.description().metric, tasks::Metric::cross_entropy);
  EXPECT_EQ(run.description().vocab(), 256);
  EXPECT_EQ(run.description().train_lengths, (std::vector<int64_t>{256}));
  EXPECT_EQ(run.description().evaluations.at(0).length, 1024);
  EXPECT_EQ(run.config({}).vocab_size, 256);
  EXPECT_EQ(run.task()->vocab(), 256);
  EXPECT_NE(error_of<DataError>([&] { run.task()->sample({.rows = 1, .length = 8}); }).find("none"), std::string::npos);
  RunComparison comparison;
  std::vector<std::string> warnings;
  comparison.add(run, [&](const std::string& text) { warnings.push_back(text); });
  const std::string path = run.path().string();
  EXPECT_EQ(warnings, (std::vector<std::string>{path + " has no evaluations; run: ovq eval " + path}));
  EXPECT_EQ(comparison.to_text(), "");
}

TEST(Run, MakesATaskOnceForEachSetOfOptions) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", mini_run("icl", "sw-ovq"));
  EXPECT_EQ(run.task(), run.task());
  const auto four = run.task({{"functions", 4}});
  EXPECT_NE(four, run.task());
  EXPECT_EQ(four, run.task({{"functions", 4}}));
  EXPECT_NE(four, run.task({{"functions", 8}}));
  // An error in the run's file is not an invalid argument.
  EXPECT_EQ(error_of<std::runtime_error>([&] {
              run.task({{"functons", 4}});
            }),
            "[icl] unknown option \"functons\"; did you mean \"functions\"?");
}

TEST(Run, IsTrainedByOneAtATime) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", mini_run("recall", "sw-ovq"));
  const auto second = [&] { train::Run::open(run.path()).lock(std::chrono::milliseconds(1)); };
  {
    const Trainer trainer(run, {});
    EXPECT_EQ(error_of<std::runtime_error>(second), run.path().string() + " is being trained by another process");
  }
  EXPECT_EQ(error_of<std::runtime_error>(second), "nothing thrown");
}

TEST(Run, SaysWhatIsWrongWithItsFile) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "run.json";
  const auto error = [&](const std::string& content) {
    std::ofstream(file) << content;
    return error_of<std::runtime_error>([&] { train::Run::open(directory.path()); });
  };
  EXPECT_EQ(error(R"({"task": "recal"})"),
            file.string() + ": [tasks] unknown task \"recal\"; did you mean \"recall\"?");
  EXPECT_EQ(error(R"({"scale": "smal"})"),
            file.string() + ": [recall] unknown scale \"smal\"; did you mean \"small\"?");
  EXPECT_EQ(error("{").find(file.string()), 0u);
}

// As version 0.1.0 wrote it, with names and fields that are gone since.
TEST(Run, OfAnOlderProgramResumes) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("recall", "sw-ovq");
  options.keep_checkpoints = 3;
  const train::Run run = train::Run::create(directory.path() / "run", options);
  int64_t steps = 0;
  Trainer(run, {.on_step = [&](const StepReport&) { ++steps; }, .stop = [&] { return steps == 5; }}).train();
  json stored = to_json(options);
  stored["keep"] = stored["keep_checkpoints"];
  stored.erase("keep_checkpoints");
  stored["model_options"]["mixers"]["ovq"]["trial"] = "none";
  std::ofstream(run.path() / "run.json") << stored;

  const train::Run older = train::Run::open(run.path());
  EXPECT_EQ(older.options().keep_checkpoints, 3);
  EXPECT_EQ(to_comparable_json(older.options()), to_comparable_json(options));
  Trainer trainer(older, {});
  EXPECT_EQ(trainer.progress().step, 5);
  EXPECT_EQ(trainer.train(), Outcome::finished);
  const auto checkpoints = std::filesystem::directory_iterator(checkpoint_directory(run.path()));
  EXPECT_EQ(std::distance(begin(checkpoints), end(checkpoints)), 3);
}

TEST(Run, MetricsAreRewoundToAStep) {
  const TemporaryDirectory directory;
  const train::Run run = train::Run::create(directory.path() / "run", mini_run("recall", "sw-ovq"));
  EXPECT_TRUE(run.metrics().empty());
  for (int step = 1; step <= 4; ++step) run.append_metrics({{"step", step}});
  run.rewind_metrics(2);
  EXPECT_EQ(run.metrics(), (std::vector<json>{{{"step", 1}}, {{"step", 2}}}));
}

// A trained run whose newest checkpoint, of step 20, is damaged; that of step 15 is sound.
class DamagedRun : public testing::Test {
 protected:
  DamagedRun() : run_(train::Run::create(directory_.path() / "run", mini_run("recall", "sw-ovq"))) {
    Trainer(run_, {}).train();
    std::filesystem::resize_file(*run_.checkpoint({}) / "model.safetensors", 1000);
  }
  Warn warn() {
    return [this](const std::string& text) { warnings_.push_back(text); };
  }
  void expect_one_warning() {
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_EQ(warnings_[0].find("skipping a damaged checkpoint: "), 0u) << warnings_[0];
    EXPECT_NE(warnings_[0].find("step-000020"), std::string::npos) << warnings_[0];
  }

  const TemporaryDirectory directory_;
  const train::Run run_;
  std::vector<std::string> warnings_;
};

TEST_F(DamagedRun, IsEvaluatedByTheCheckpointBefore) {
  const TrainedModel trained = run_.load_model(warn());
  EXPECT_EQ(trained.checkpoint.filename(), "step-000015");
  expect_one_warning();
  EXPECT_EQ(sweep(run_, trained, {.lengths = {24}, .evaluate = {.rows = 1}}).checkpoint, "step-000015");
}

TEST_F(DamagedRun, IsInspectedByTheCheckpointBefore) {
  const std::filesystem::path found = model_directory(run_.path(), warn());
  EXPECT_EQ(found.filename(), "step-000015");
  expect_one_warning();
  EXPECT_GT(models::inspect(found.string(), {64}).total, 0);
  EXPECT_EQ(model_directory(found, warn()), found);
  EXPECT_EQ(model_directory("tiny/sw-ovq", warn()), "tiny/sw-ovq");
}

TEST_F(DamagedRun, IsComparedByTheCheckpointBefore) {
  // Results were once stored without `keep`; only the model knows it.
  run_.store_result({.length = 64, .centroids = 16, .evaluation = {.length = 64}});
  RunComparison comparison;
  comparison.add(run_, warn());
  expect_one_warning();
  EXPECT_DOUBLE_EQ(comparison.results().at(0).at("keep"), 0.2);
}

// Only resumed training needs two thirds of a checkpoint's bytes.
TEST_F(DamagedRun, WithoutTheOptimizerIsAModelAllTheSame) {
  const std::filesystem::path light = *run_.checkpoint({});
  std::filesystem::remove(light / "optimizer.safetensors");
  EXPECT_EQ(run_.load_model({}).checkpoint, light);
  EXPECT_EQ(model_directory(run_.path(), {}), light);
  EXPECT_EQ(find_checkpoint(run_.path(), {}, Purpose::training), std::nullopt);
  EXPECT_NE(
      error_of<std::runtime_error>([&] { Trainer(run_, {}); }).find("has no checkpoint with optimizer.safetensors"),
      std::string::npos);
}

TEST_F(DamagedRun, GoesOnFromTheCheckpointBefore) {
  TrainHooks hooks;
  hooks.warn = warn();
  EXPECT_EQ(Trainer(run_, hooks).progress().step, 15);
  expect_one_warning();
}

// The damaged checkpoint of a later step must not count among those that are kept.
TEST_F(DamagedRun, KeepsWhatItSavesNext) {
  TrainHooks hooks;
  hooks.stop = [] { return true; };
  Trainer(run_, hooks).train();
  EXPECT_EQ(run_.checkpoint({})->filename(), "step-000016");
  EXPECT_TRUE(std::filesystem::exists(checkpoint_directory(run_.path()) / "step-000015"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint_directory(run_.path()) / "step-000020"));
}

TEST_F(DamagedRun, WithoutAnySoundCheckpoint) {
  std::filesystem::resize_file(*run_.checkpoint({}) / "optimizer.safetensors", 1000);
  EXPECT_EQ(run_.checkpoint(warn()), std::nullopt);
  EXPECT_EQ(warnings_.size(), 2u);
  EXPECT_EQ(error_of<std::runtime_error>([&] { run_.load_model({}); }),
            run_.path().string() + " has only damaged checkpoints");
  EXPECT_EQ(run_.config({}).centroids().at("ovq"), 16);  // of the options
  const size_t lines = run_.metrics().size();
  EXPECT_EQ(error_of<std::runtime_error>([&] { Trainer(run_, {}); }),
            run_.path().string() + " has only damaged checkpoints; to start again from step 1, remove " +
                checkpoint_directory(run_.path()).string());
  EXPECT_EQ(run_.metrics().size(), lines);
  std::filesystem::remove_all(checkpoint_directory(run_.path()));
  EXPECT_EQ(error_of<std::runtime_error>([&] { run_.load_model({}); }), run_.path().string() + " has no checkpoint");
}

}  // namespace
}  // namespace ovq::train::test
