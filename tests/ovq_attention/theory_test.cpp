// The paper's appendix A: reading is the expectation of a Gaussian mixture regression, writing is a step of batch
// k-means, which is a Newton step on its loss and an EM step with hard responsibilities.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <span>
#include <vector>

#include "tests/core/compare.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

using Rows = reference::Matrix<double>;

double squared_distance(const double* a, const double* b, int64_t dim) {
  double sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// A Gaussian mixture of keys and values with covariance I / beta.
struct Mixture {
  Rows keys, values;           // means
  std::vector<double> priors;  // up to a common factor
};

// E[V | K = q] = sum_n pi_n N(q | mu_n, I / beta) mu^v_n / sum_n pi_n N(q | mu_n, I / beta)
std::vector<double> expectation(const Mixture& mixture, const double* q, double beta) {
  const int64_t dim = mixture.keys.columns;
  std::vector<double> mean(mixture.values.columns);
  double total = 0;
  for (int64_t n = 0; n < mixture.keys.rows; ++n) {
    const double density = std::pow(beta / (2 * std::numbers::pi), 0.5 * static_cast<double>(dim)) *
                           std::exp(-beta / 2 * squared_distance(q, mixture.keys[n], dim));
    total += mixture.priors[n] * density;
    reference::add_scaled(mean.data(), mixture.priors[n] * density, mixture.values[n], mixture.values.columns);
  }
  for (double& element : mean) element /= total;
  return mean;
}

double largest_difference(std::span<const double> a, std::span<const double> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// The largest difference between what three queries read from a dictionary of 96 tokens and the regression, whose
// priors are counts times `factor(beta, |mu|^2)`.
double difference_from_regression(bool normalize, const std::function<double(double, double)>& factor) {
  const OvqProblem problem({.tokens = 99,
                            .key_dim = 8,
                            .value_dim = 5,
                            .options = {.chunk = 16, .centroids = 12, .normalize = normalize},
                            .beta = 3.0f});
  const double beta = 3;
  // Keys and queries of unit norm in double, not only in float.
  auto head = reference::load_head<double>(problem.inputs(), 0, 0, 0, 99);
  for (Rows* rows : {&head.q[0], &head.k}) {
    for (int64_t t = 0; t < rows->rows; ++t) {
      const double norm = std::sqrt(reference::dot((*rows)[t], (*rows)[t], 8));
      for (int64_t i = 0; i < 8; ++i) (*rows)[t][i] /= norm;
    }
  }
  const auto result = reference::ovq_attention_forward(head, reference::empty_state<double>(8, 5));
  const auto& dictionary = result.dictionaries.back();
  Mixture mixture{dictionary.keys, dictionary.values, {}};
  bool merged = false;
  for (int64_t n = 0; n < dictionary.size(); ++n) {
    mixture.priors.push_back(dictionary.counts[n]);
    merged |= dictionary.counts[n] > 3;
  }
  EXPECT_TRUE(merged);
  double largest = 0;
  for (int64_t t = 96; t < 99; ++t) {  // tokens of the own chunk are components of one data point each
    mixture.keys.append(head.k[t]);
    mixture.values.append(head.v[t]);
    mixture.priors.push_back(1);
    Mixture weighted = mixture;
    for (int64_t n = 0; n < weighted.keys.rows; ++n) {
      weighted.priors[n] *= factor(beta, reference::dot(weighted.keys[n], weighted.keys[n], 8));
    }
    const std::vector<double> expected = expectation(weighted, head.q[0][t], beta);
    largest = std::max(largest, largest_difference({result.o[0][t], 5}, expected));
  }
  return largest;
}

TEST(OvqTheory, ReadingIsGaussianMixtureRegression) {
  EXPECT_LE(difference_from_regression(true, [](double, double) { return 1.0; }), 1e-12);
}

// Means of unit vectors are shorter: each weight is off by exactly the factor exp(-beta |mu|^2 / 2).
TEST(OvqTheory, ShortCentroidsDifferByTheirNormAlone) {
  EXPECT_GT(difference_from_regression(false, [](double, double) { return 1.0; }), 1e-3);
  EXPECT_LE(difference_from_regression(false, [](double beta, double norm) { return std::exp(beta * norm / 2); }),
            1e-12);
}

// A founding chunk in which every key becomes a centroid, then a chunk that joins them.
struct FirstUpdate {
  static constexpr int64_t kChunk = 16, kDim = 8, kValueDim = 5;

  FirstUpdate()
      : problem({.tokens = 2 * kChunk,
                 .key_dim = kDim,
                 .value_dim = kValueDim,
                 .options = {.chunk = kChunk, .centroids = kChunk, .growth = Growth::all}}),
        result(expected_forward<double>(problem.inputs()).results[0]) {
    const auto head = reference::load_head<double>(problem.inputs(), 0, 0, 0, 2 * kChunk);
    points = Rows(2 * kChunk, kDim + kValueDim);
    for (int64_t t = 0; t < 2 * kChunk; ++t) {
      std::copy_n(head.k[t], kDim, points[t]);
      std::copy_n(head.v[t], kValueDim, points[t] + kDim);
    }
    before = joined(result.dictionaries[1]);
    after = joined(result.state.dictionary);
  }

  static Rows joined(const reference::OvqDictionary<double>& dictionary) {
    Rows rows(dictionary.size(), kDim + kValueDim);
    for (int64_t n = 0; n < rows.rows; ++n) {
      std::copy_n(dictionary.keys[n], kDim, rows[n]);
      std::copy_n(dictionary.values[n], kValueDim, rows[n] + kDim);
    }
    return rows;
  }

  // The centroid of each data point; founders belong to their own centroid.
  int64_t centroid(int64_t t) const {
    return result.assignments[t] < 0 ? ~result.assignments[t] : result.assignments[t];
  }

  OvqProblem problem;
  reference::OvqHeadResult<double> result;
  Rows points, before, after;  // [k | v]
};

TEST(OvqTheory, WritingIsAStepOfBatchKMeans) {
  const FirstUpdate x;
  ASSERT_EQ(x.before.rows, 16);
  for (const double count : x.result.dictionaries[1].counts) ASSERT_EQ(count, 1.0);
  Rows sums(16, 13);
  std::vector<double> members(16);
  for (int64_t t = 0; t < 32; ++t) {
    reference::add_scaled(sums[x.centroid(t)], 1.0, x.points[t], 13);
    members[x.centroid(t)] += 1;
  }
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t i = 0; i < 13; ++i) sums[n][i] /= members[n];
  }
  EXPECT_TRUE(close_to(std::span<const double>(x.after.data), std::span<const double>(sums.data), 1e-12));
  // and so for the fast path
  std::vector<OvqState> states = x.problem.states();
  const OvqForward forward = run_forward(x.problem.inputs(), states);
  ASSERT_EQ(forward.assignments, x.result.assignments);
  const StateValues<float> actual = values_of(states[0]);
  for (int64_t n = 0; n < 16; ++n) {
    EXPECT_TRUE(close_to(std::span<const float>(actual.keys).subspan(n * 8, 8), {sums[n], 8}, 2e-6));
    EXPECT_TRUE(close_to(std::span<const float>(actual.values).subspan(n * 5, 5), {sums[n] + 8, 5}, 2e-6));
  }
}

// mu - H^(-1) g of L(mu) = sum_t |x_t - mu_{a_t}|^2. L is quadratic, so differences give its derivatives exactly.
TEST(OvqTheory, WritingIsANewtonStep) {
  const FirstUpdate x;
  Rows mu = x.before;
  const auto loss = [&] {
    double sum = 0;
    for (int64_t t = 0; t < 32; ++t) sum += squared_distance(x.points[t], mu[x.centroid(t)], 13);
    return sum;
  };
  const double step = 0.5, here = loss();
  std::vector<double> newton(x.before.data);
  for (size_t i = 0; i < newton.size(); ++i) {
    const double value = mu.data[i];
    mu.data[i] = value + step;
    const double above = loss();
    mu.data[i] = value - step;
    const double below = loss();
    mu.data[i] = value;
    newton[i] -= ((above - below) / (2 * step)) / ((above - 2 * here + below) / (step * step));
  }
  EXPECT_TRUE(close_to(std::span<const double>(x.after.data), std::span<const double>(newton), 1e-11));
}

// z_tn = softmax_n(-beta |k_t - mu_n|^2 / 2) under uniform priors, with beta so large that all but one vanish.
TEST(OvqTheory, WritingIsAnExpectationMaximisationStepInTheHardLimit) {
  const FirstUpdate x;
  const double beta = 1e6;
  Rows sums(16, 13);
  std::vector<double> weights(16);
  for (int64_t t = 0; t < 32; ++t) {
    std::vector<double> logits;
    for (int64_t n = 0; n < 16; ++n) logits.push_back(-beta / 2 * squared_distance(x.points[t], x.before[n], 8));
    const double normalizer = reference::log_sum_exp(logits);
    for (int64_t n = 0; n < 16; ++n) {
      const double responsibility = std::exp(logits[n] - normalizer);
      reference::add_scaled(sums[n], responsibility, x.points[t], 13);
      weights[n] += responsibility;
    }
  }
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t i = 0; i < 13; ++i) sums[n][i] /= weights[n];
  }
  EXPECT_TRUE(close_to(std::span<const double>(x.after.data), std::span<const double>(sums.data), 1e-9));
}

}  // namespace
}  // namespace ovq::kernels::test
