#include "ovq/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tests/models/fixtures.h"

namespace ovq::models::test {
namespace {

constexpr int kDraws = 20'000;

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 1.0f, -3.0f};

// The frequency of each token.
std::map<int32_t, double> shares(const SamplingOptions& options, const std::vector<int32_t>& recent = {}) {
  Sampler sampler(options);
  std::map<int32_t, double> result;
  for (int position = 0; position < kDraws; ++position)
    result[sampler.choose(kLogits, recent, position)] += 1.0 / kDraws;
  return result;
}

// The expected frequencies of the remaining tokens, from their logits.
void expect_shares(const std::map<int32_t, double>& actual, const std::map<int32_t, double>& logits) {
  double sum = 0;
  for (const auto& [token, logit] : logits) sum += std::exp(logit);
  ASSERT_EQ(actual.size(), logits.size());
  for (const auto& [token, logit] : logits) EXPECT_NEAR(actual.at(token), std::exp(logit) / sum, 0.02) << token;
}

TEST(Sampling, WithoutTemperatureTheMostLikelyAndOfEqualsTheFirst) {
  Sampler sampler(SamplingOptions{});
  EXPECT_EQ(sampler.choose(kLogits, {}, 0), 1);
  EXPECT_EQ(sampler.choose(std::vector<float>{1, 3, 3, 2}, {}, 0), 1);
}

TEST(Sampling, DrawsByProbabilityAndTemperature) {
  expect_shares(shares({.temperature = 1}), {{0, 0.5}, {1, 2}, {2, -1}, {3, 1}, {4, -3}});
  expect_shares(shares({.temperature = 2}), {{0, 0.25}, {1, 1}, {2, -0.5}, {3, 0.5}, {4, -1.5}});
}

TEST(Sampling, LeavesOutWhatIsUnlikely) {
  expect_shares(shares({.temperature = 1, .top_k = 2}), {{1, 2}, {3, 1}});
  // 0.58, 0.21, 0.13, 0.03, 0.004: two have 0.79, three 0.92
  expect_shares(shares({.temperature = 1, .top_p = 0.7}), {{1, 2}, {3, 1}});
  expect_shares(shares({.temperature = 1, .top_p = 0.9}), {{0, 0.5}, {1, 2}, {3, 1}});
  expect_shares(shares({.temperature = 1, .top_p = 1e-9}), {{1, 2}});
  expect_shares(shares({.temperature = 1, .min_p = 0.3}), {{1, 2}, {3, 1}});  // exp(-1) is 0.37, exp(-1.5) 0.22
  expect_shares(shares({.temperature = 1, .min_p = 1}), {{1, 2}});
  expect_shares(shares({.temperature = 1, .top_k = 3, .top_p = 0.7}), {{1, 2}, {3, 1}});
}

TEST(Sampling, RecentTokensAreLessLikely) {
  expect_shares(shares({.temperature = 1, .repetition_penalty = 2}, {1, 1, 2}),
                {{0, 0.5}, {1, 1}, {2, -2}, {3, 1}, {4, -3}});
  Sampler sampler({.repetition_penalty = 4, .repetition_window = 2});
  EXPECT_EQ(sampler.choose(kLogits, std::vector<int32_t>{1, 3}, 0), 0);
  EXPECT_EQ(sampler.choose(kLogits, std::vector<int32_t>{1, 3, 4}, 0), 1);  // too long ago
}

TEST(Sampling, ADrawIsAFunctionOfSeedAndPosition) {
  const auto draws = [](uint64_t seed, int64_t first) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<int32_t> tokens;
    for (int64_t position = first; position < 50; ++position) tokens.push_back(sampler.choose(kLogits, {}, position));
    return tokens;
  };
  const std::vector<int32_t> all = draws(7, 0);
  EXPECT_EQ(draws(7, 20), std::vector<int32_t>(all.begin() + 20, all.end()));
  EXPECT_NE(draws(8, 0), all);
}

TEST(Sampling, LogProbabilitiesAreTheModels) {
  double sum = 0;
  for (int32_t token = 0; token < 5; ++token) sum += std::exp(log_probability(kLogits, token));
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(log_probability(kLogits, 1) - log_probability(kLogits, 4), 5, 1e-12);
  EXPECT_NEAR(log_probability(std::vector<float>{1000, 0}, 0), 0, 1e-12);
}

TEST(Sampling, BadInput) {
  const auto error = [](const SamplingOptions& options) {
    return message_of<std::invalid_argument>([&] { Sampler sampler(options); });
  };
  EXPECT_EQ(error({.temperature = -1}), "[generate] temperature is -1; must be at least 0");
  EXPECT_EQ(error({.top_p = 0}), "[generate] top_p is 0; must be in (0, 1]");
  EXPECT_EQ(error({.top_p = std::nan("")}), "[generate] top_p is nan; must be in (0, 1]");
  EXPECT_EQ(error({.min_p = 1.5}), "[generate] min_p is 1.5; must be in [0, 1]");
  EXPECT_EQ(error({.repetition_penalty = 0}), "[generate] repetition_penalty is 0; must be positive");
  EXPECT_EQ(error({.repetition_window = 0}), "[generate] repetition_window is 0; must be in [1, 1024]");
  Sampler sampler(SamplingOptions{});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(message_of<std::runtime_error>([&] {
              sampler.choose(std::vector<float>{nan, nan}, {}, 0);
            }),
            "[generate] the model's logits are not finite numbers");
}

}  // namespace
}  // namespace ovq::models::test
