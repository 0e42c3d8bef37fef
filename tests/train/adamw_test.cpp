#include "ovq/train/adamw.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adamw.h>

#include <set>

#include "ovq/train/schedule.h"
#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

// Takes the same steps as torch's own optimiser, with decay on matrices only.
TEST(AdamW, IsTorchsAdamW) {
  torch::manual_seed(1);
  torch::nn::Sequential ours(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  for (auto& item : ours->named_parameters()) {
    EXPECT_FALSE(AdamW::decays(item.key(), item.value()));  // plain names: nothing is a projection
  }
  auto theirs = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(ours->clone());
  AdamW optimizer(*ours, {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.5});
  torch::optim::AdamW reference(theirs->parameters(),
                                torch::optim::AdamWOptions(0.01).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.0));
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = at::randn({4, 5});
    optimizer.zero_gradients();
    reference.zero_grad();
    ours->forward(x).square().sum().backward();
    theirs->forward(x).square().sum().backward();
    optimizer.step(0.01);
    reference.step();
  }
  EXPECT_EQ(optimizer.steps(), 5);
  const auto a = ours->parameters(), b = theirs->parameters();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), 1e-6);
}

TEST(AdamW, DecaysMatricesOfModelsOnly) {
  std::set<std::string> without;
  for (const std::string& pattern : models::pattern_names()) {
    const auto model = models::make_model(models::model_preset("tiny/" + pattern).config, 1);
    for (const auto& item : model->named_parameters()) {
      const std::string name =
          item.key().substr(item.key().rfind("mixer.") == std::string::npos ? 0 : item.key().rfind("mixer.") + 6);
      if (!AdamW::decays(item.key(), item.value())) without.insert(name);
      if (item.key().ends_with("_proj.weight") || item.key() == "head.weight") {
        EXPECT_TRUE(AdamW::decays(item.key(), item.value())) << item.key();
      }
    }
  }
  for (const char* name : {"b", "A_log", "dt_bias", "D", "lambda", "norm.weight", "a_proj.bias", "quantizer.codebook"})
    EXPECT_TRUE(without.contains(name)) << name;
}

TEST(AdamW, ClipsToTheNorm) {
  torch::nn::Linear layer(3, 2);
  AdamW optimizer(*layer, {});
  (layer(at::ones({1, 3})).sum() * 100).backward();
  const double norm = optimizer.clip_gradients(1.0);
  EXPECT_GT(norm, 100);
  EXPECT_NEAR(optimizer.clip_gradients(0), 1.0, 1e-5);
}

// Ranks that keep a share of the moments each and exchange their updates equal one rank that keeps all.
TEST(AdamW, ShardsMakeTheSameSteps) {
  constexpr int64_t kRanks = 3;
  const models::ModelConfig config = models::model_preset("tiny/sw-ovq").config;
  const auto whole = models::make_model(config, 1);
  AdamW all(*whole, {});
  std::vector<std::shared_ptr<models::LanguageModel>> models;
  std::vector<AdamW> shards;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    models.push_back(models::make_model(config, 1));
    shards.emplace_back(*models.back(), AdamWOptions{}, Shard{rank, kRanks});
  }
  const auto set_gradients = [&](models::LanguageModel& model, int step) {
    torch::manual_seed(static_cast<uint64_t>(step));
    for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::randn_like(parameter).detach();
  };
  for (int step = 0; step < 3; ++step) {
    set_gradients(*whole, step);
    all.step(0.01);
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      set_gradients(*models[static_cast<size_t>(rank)], step);
      shards[static_cast<size_t>(rank)].step(0.01);
    }
    std::vector<std::vector<AdamW::ParameterShard>> pieces;
    for (const AdamW& shard : shards) pieces.push_back(shard.parameter_shards());
    for (size_t i = 0; i < pieces[0].size(); ++i) {
      const auto owner = static_cast<size_t>(pieces[0][i].rank);
      for (auto& other : pieces) {
        EXPECT_EQ(other[i].name, pieces[owner][i].name);
        EXPECT_EQ(other[i].m.defined(), &other == &pieces[owner]);
        other[i].parameter.copy_(pieces[owner][i].parameter);
      }
    }
  }
  int64_t bytes = 0, most = 0;
  auto moments = shards[0].state();
  for (auto& [name, tensor] : moments) tensor.zero_();
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const AdamW& shard = shards[static_cast<size_t>(rank)];
    bytes += shard.state_bytes();
    most = std::max(most, shard.state_bytes());
    for (auto& [name, tensor] : shard.state()) moments.at(name) += tensor;
    for (const auto& item : models[static_cast<size_t>(rank)]->named_parameters())
      EXPECT_TRUE(at::equal(item.value(), whole->named_parameters()[item.key()])) << item.key();
  }
  EXPECT_EQ(bytes, all.state_bytes());
  EXPECT_LE(most, bytes / kRanks + 8);
  for (const auto& [name, tensor] : all.state()) EXPECT_TRUE(at::equal(tensor, moments.at(name))) << name;
}

TEST(Schedule, WarmsUpAndFallsToTheMinimum) {
  const Schedule schedule{.peak = 1.0, .minimum = 0.1, .warmup = 10, .steps = 110};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(9), 1.0);
  EXPECT_DOUBLE_EQ(schedule.rate(10), 1.0);
  EXPECT_NEAR(schedule.rate(60), 0.55, 1e-12);
  EXPECT_NEAR(schedule.rate(110), 0.1, 1e-12);
  EXPECT_NEAR(schedule.rate(1000), 0.1, 1e-12);
}

}  // namespace
}  // namespace ovq::train::test
