// Runs that start from the weights of other runs.
#include "ovq/train/initial_weights.h"

#include <gtest/gtest.h>

#include "ovq/base/files/mapped_file.h"
#include "ovq/base/files/sha256.h"
#include "ovq/models/weights.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing thrown";
}

void expect_weights(const models::LanguageModel& model, const std::filesystem::path& file, bool equal) {
  const auto expected = models::load_tensors(file).tensors;
  bool same = true;
  for (const auto& [name, tensor] : models::named_tensors(model)) same = same && at::equal(tensor, expected.at(name));
  EXPECT_EQ(same, equal) << file;
}

class InitFrom : public testing::Test {
 protected:
  InitFrom() {
    RunOptions options = mini_run("recall", "sw-ovq");
    options.seed = 7;
    source_ = directory_.path() / "source";
    Trainer(train::Run::create(source_, options), {}).train();  // checkpoints of steps 15 and 20
    checkpoint_ = newest_checkpoint(source_);
  }

  RunOptions started(const std::filesystem::path& from) {
    RunOptions options = mini_run("recall", "sw-ovq");
    options.init_from =
        find_initial_weights({.path = from.string()}, [&](const std::string& text) { warnings_.push_back(text); });
    return options;
  }

  TemporaryDirectory directory_;
  std::filesystem::path source_, checkpoint_;
  std::vector<std::string> warnings_;
};

TEST_F(InitFrom, ARunsNewestCheckpointOrAModel) {
  const std::filesystem::path file = checkpoint_ / "model.safetensors";
  for (const std::filesystem::path& from : {source_, checkpoint_}) {
    const RunOptions options = started(from);
    EXPECT_EQ(options.init_from.path, checkpoint_.string());
    EXPECT_EQ(options.init_from.sha256, files::sha256(files::MappedFile(file).bytes()));
    EXPECT_EQ(run_options_from_json(to_json(options)).init_from, options.init_from);
    const train::Run run = train::Run::create(directory_.path() / from.filename() / "next", options);
    Trainer trainer(run, {});
    EXPECT_EQ(trainer.progress().step, 0);
    expect_weights(trainer.model(), file, true);
  }
  Trainer fresh(train::Run::create(directory_.path() / "fresh", mini_run("recall", "sw-ovq")), {});
  expect_weights(fresh.model(), file, false);
}

TEST_F(InitFrom, WhatNoWeightDependsOnMayDiffer) {
  RunOptions options = started(source_);
  options.model_options["mixers"]["ovq"]["centroids"] = 99;
  options.model_options["mixers"]["sw"]["window"] = 5;
  Trainer trainer(train::Run::create(directory_.path() / "other", options), {});
  expect_weights(trainer.model(), checkpoint_ / "model.safetensors", true);
  EXPECT_EQ(trainer.model().config().centroids().at("ovq"), 99);
}

TEST_F(InitFrom, WhatDoesNotFitIsNamed) {
  const std::string file = (checkpoint_ / "model.safetensors").string();
  const auto error = [&](const std::function<void(RunOptions&)>& change) {
    RunOptions options = mini_run("recall", "sw-ovq");
    change(options);
    const auto model = models::make_model(model_config(options, 32), 0);
    return failure_of([&] { load_initial_weights(*model, started(source_).init_from); });
  };
  EXPECT_EQ(error([](RunOptions&) {}), "nothing thrown");
  EXPECT_EQ(error([](RunOptions& options) { options.model_options["hidden_size"] = 64; }),
            file + ": embed.weight is [32, 32]; the model's is [32, 64]");
  EXPECT_EQ(error([](RunOptions& options) { options.model_options["num_hidden_layers"] = 4; }),
            file + " lacks layers.2.mixer.b");
  EXPECT_EQ(error([](RunOptions& options) { options.model_options["num_hidden_layers"] = 1; }),
            file + " holds layers.1.mixer.alpha, which the model lacks");
  const std::string none = (directory_.path() / "none").string();
  EXPECT_EQ(failure_of([&] { started(none); }),
            none + " is neither a model nor a run: it has no model.safetensors and no checkpoints");
}

TEST_F(InitFrom, PassesOverDamage) {
  std::ofstream(checkpoint_ / "optimizer.safetensors") << "cut short";
  EXPECT_EQ(started(source_).init_from.path, (source_ / "checkpoints" / "step-000015").string());
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("step-000020"), std::string::npos) << warnings_[0];
}

// Before the first checkpoint the weights are read again and must be unchanged; afterwards they are not needed.
TEST_F(InitFrom, IsNeededUntilTheFirstCheckpoint) {
  const RunOptions options = started(source_);
  const train::Run whole = train::Run::create(directory_.path() / "whole", options);
  Trainer(whole, {}).train();
  const train::Run killed = train::Run::create(directory_.path() / "killed", options);
  { const Trainer before(killed, {}); }  // no step, no checkpoint
  int64_t steps = 0;
  TrainHooks hooks;
  hooks.on_step = [&](const StepReport&) { ++steps; };
  hooks.stop = [&] { return steps == 3; };
  EXPECT_EQ(Trainer(train::Run::open(killed.path()), hooks).train(), Outcome::stopped);

  const train::Run late = train::Run::create(directory_.path() / "late", options);
  const auto other = models::make_model(model_config(mini_run("recall", "sw-ovq"), 32), 99);
  models::save_model(*other, checkpoint_);
  EXPECT_NE(failure_of([&] {
              Trainer(train::Run::open(late.path()), {});
            }).find("; the run started from " + options.init_from.sha256),
            std::string::npos);
  EXPECT_NE(failure_of([&] { find_initial_weights(options.init_from, {}); }).find(options.init_from.sha256),
            std::string::npos);
  std::filesystem::remove_all(source_);
  EXPECT_EQ(Trainer(train::Run::open(killed.path()), {}).train(), Outcome::finished);
  EXPECT_EQ(losses(killed), losses(whole));
}

}  // namespace
}  // namespace ovq::train::test
