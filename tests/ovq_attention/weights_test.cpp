// Weights of tokens: the effect of 1, 2 and nearly 0, weighted means, and ties.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/backward_fixtures.h"

namespace ovq::kernels::test {
namespace {

using OvqWeights = OnIsa;
OVQ_ON_EVERY_ISA(OvqWeights);

// Covers assignments, outputs, states and gradients. Keys that are not of unit norm have similarities above 1, which
// all score 0.
TEST_P(OvqWeights, OnesHaveTheBitsOfNone) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    if (options.weighted || options.rate) continue;
    for (const Keys keys : {Keys::unit, Keys::gaussian, Keys::repeated}) {
      const OvqCase c{.batch = 2,
                      .tokens = 150,
                      .query_heads = 4,
                      .kv_heads = 2,
                      .key_dim = 20,
                      .value_dim = 12,
                      .options = options,
                      .keys = keys};
      SCOPED_TRACE(testing::Message() << c);
      const OvqProblem without(c);
      OvqProblem with = without;
      with.options.weighted = true;
      with.weights = Tensor({2, 150, 2, 1});
      with.weights.fill(1.0f);
      std::vector<OvqState> states = without.states(), weighted_states = with.states();
      const OvqForward expected = run_forward(without.inputs(), states);
      const OvqForward actual = run_forward(with.inputs(), weighted_states);
      EXPECT_TRUE(same_bits(actual.o.values(), expected.o.values()));
      EXPECT_TRUE(same_bits(actual.lse.values(), expected.lse.values()));
      EXPECT_TRUE(same_bits(actual.assignments, expected.assignments));
      const StateValues<float> a = values_of(weighted_states[0]), e = values_of(states[0]);
      EXPECT_TRUE(same_bits(a.keys, e.keys));
      EXPECT_TRUE(same_bits(a.values, e.values));
      EXPECT_TRUE(same_bits(a.pending_keys, e.pending_keys));
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 2; ++h) {
          const auto counts = states[0].counts(b, h);
          for (size_t n = 0; n < counts.size(); ++n) {
            EXPECT_EQ(*weighted_states[0].real_counts().row(b, static_cast<int64_t>(n), h),
                      static_cast<float>(counts[n]));
          }
        }
      }
      OvqBackwardProblem backward = random_gradients(without.inputs(), without.states(), states, Layout::dense, 3);
      const OvqGradientTensors d_expected = run_backward(without.inputs(), expected, backward);
      backward.initial = with.states();
      const OvqGradientTensors d_actual = run_backward(with.inputs(), actual, backward);
      EXPECT_TRUE(same_bits(d_actual.d_q.values(), d_expected.d_q.values()));
      EXPECT_TRUE(same_bits(d_actual.d_k.values(), d_expected.d_k.values()));
      EXPECT_TRUE(same_bits(d_actual.d_v.values(), d_expected.d_v.values()));
      EXPECT_TRUE(same_bits(d_actual.d_beta, d_expected.d_beta));
    }
  }
}

// One token of each chunk has weight 2, or occurs twice in chunks that are longer by one.
TEST_P(OvqWeights, TwoIsTheTokenTwice) {
  constexpr int64_t kChunk = 8, kTokens = 3 * kChunk + 5, kLonger = 3 * (kChunk + 1) + 6;
  for (const bool normalize : {false, true}) {
    OvqProblem once(
        {.tokens = kTokens,
         .query_heads = 2,
         .options = {
             .chunk = kChunk, .centroids = 5, .growth = Growth::all, .normalize = normalize, .weighted = true}});
    once.weights.fill(1.0f);
    OvqProblem twice = once;
    twice.options.chunk = kChunk + 1;
    for (Tensor* tensor : {&twice.q, &twice.k, &twice.v, &twice.weights}) {
      const View<float> view = tensor->view();
      *tensor = Tensor({1, kLonger, view.heads, view.dim});
    }
    const std::vector<int32_t> assignments = run_forward(once.inputs()).assignments;
    std::vector<int32_t> longer;
    std::vector<int64_t> at;  // last occurrence of each token
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t chunk = t / kChunk;
      const bool doubled = t % kChunk == 1 + chunk;  // in the first chunk a founder
      const int32_t a = assignments[t];
      for (int64_t i = 0; i < (doubled ? 2 : 1); ++i) {
        const auto to = static_cast<int64_t>(longer.size());
        std::copy_n(once.q.row(0, t, 0), 2 * 16, twice.q.row(0, to, 0));
        std::copy_n(once.k.row(0, t, 0), 16, twice.k.row(0, to, 0));
        std::copy_n(once.v.row(0, t, 0), 16, twice.v.row(0, to, 0));
        longer.push_back(i == 1 && a < 0 && a != kUnassigned ? ~a : a);
      }
      at.push_back(static_cast<int64_t>(longer.size()) - 1);
      if (doubled) *once.weights.row(0, t, 0) = 2.0f;
    }
    ASSERT_EQ(static_cast<int64_t>(longer.size()), kLonger);
    twice.weights.fill(1.0f);
    std::vector<OvqState> states = once.states(), longer_states = twice.states();
    const OvqForward actual = run_forward(once.inputs(), states, assignments);
    const OvqForward repeated = run_forward(twice.inputs(), longer_states, longer);
    std::vector<double> expected;
    for (int64_t t = 0; t < kTokens; ++t) {
      expected.insert(expected.end(), repeated.o.row(0, at[t], 0), repeated.o.row(0, at[t], 0) + 2 * 16);
    }
    const std::vector<float> o = actual.o.values();
    EXPECT_TRUE(close_to(std::span<const float>(o), std::span<const double>(expected), 3e-6));
    const auto expect = [](const std::vector<float>& x, const std::vector<float>& y) {
      const std::vector<double> truth(y.begin(), y.end());
      EXPECT_TRUE(close_to(std::span<const float>(x), std::span<const double>(truth), 3e-6));
    };
    const StateValues<float> a = values_of(states[0]), e = values_of(longer_states[0]);
    expect(a.keys, e.keys);
    expect(a.values, e.values);
    EXPECT_TRUE(same_bits(a.counts, e.counts));
  }
}

// Key and value of a token whose weight is nearly 0 affect only the token itself, and it founds no centroid while there
// are others.
TEST_P(OvqWeights, NearlyZeroRemovesTheToken) {
  for (const OvqOptions& options : option_variants(8, 6)) {
    if (!options.weighted || options.new_centroids == NewCentroids::random || options.growth == Growth::all) continue;
    for (const int64_t removed : {0, 3, 11, 20}) {
      OvqProblem problem({.tokens = 60, .query_heads = 2, .options = options});
      *problem.weights.row(0, removed, 0) = 1e-20f;
      const OvqForward before = run_forward(problem.inputs());
      EXPECT_GE(before.assignments[removed], 0);
      problem.k.row(0, removed, 0)[2] += 0.5f;
      problem.v.row(0, removed, 0)[2] = 30.0f;
      const OvqForward after = run_forward(problem.inputs(), {}, before.assignments);
      const int64_t from = removed == 0 ? 1 : 0;  // alone at the start it reads nothing but itself
      EXPECT_TRUE(same_bits(dense(after.o.slice(from, 60 - from)), dense(before.o.slice(from, 60 - from))));
    }
  }
}

// A common factor of all weights cancels, even if the weights' reciprocals overflow a float.
TEST_P(OvqWeights, AFactorOfAllChangesNothing) {
  for (const OvqOptions& options : option_variants(8, 6)) {
    if (!options.weighted) continue;
    const OvqCase c{.tokens = 60, .query_heads = 2, .options = options};
    SCOPED_TRACE(testing::Message() << c);
    OvqProblem plain(c);
    Random random(5);
    plain.weights.each_row([&](float* weight) { *weight = 1.0f / static_cast<float>(1 << random.below(3)); });
    OvqProblem tiny = plain;
    tiny.weights.each_row([&](float* weight) { *weight *= 0x1p-135f; });
    const std::vector<int32_t> assignments = run_forward(plain.inputs()).assignments;
    std::vector<OvqState> plain_states = plain.states(), tiny_states = tiny.states();
    const OvqForward expected = run_forward(plain.inputs(), plain_states, assignments);
    const OvqForward actual = run_forward(tiny.inputs(), tiny_states, assignments);
    const auto expect = [](const char* name, const std::vector<float>& x, const std::vector<float>& y) {
      const std::vector<double> truth(y.begin(), y.end());
      EXPECT_TRUE(close_to(std::span<const float>(x), std::span<const double>(truth), 3e-4)) << name;
    };
    // Only the logarithms of the weights are rounded more coarsely.
    expect("o", actual.o.values(), expected.o.values());
    const StateValues<float> a = values_of(tiny_states[0]), e = values_of(plain_states[0]);
    EXPECT_TRUE(same_bits(a.keys, e.keys));
    EXPECT_TRUE(same_bits(a.values, e.values));
    const OvqBackwardProblem backward = random_gradients(plain.inputs(), {}, {}, Layout::dense, 3);
    const OvqGradientTensors d_expected =
        run_backward(plain.inputs(), run_forward(plain.inputs(), {}, assignments), backward);
    const OvqGradientTensors d_actual =
        run_backward(tiny.inputs(), run_forward(tiny.inputs(), {}, assignments), backward);
    expect("d_q", d_actual.d_q.values(), d_expected.d_q.values());
    expect("d_k", d_actual.d_k.values(), d_expected.d_k.values());
    expect("d_v", d_actual.d_v.values(), d_expected.d_v.values());
    expect("d_beta", d_actual.d_beta, d_expected.d_beta);
  }
}

TEST_P(OvqWeights, CentroidsAreWeightedMeans) {
  for (const bool rope : {false, true}) {
    const OvqProblem problem(
        {.tokens = 2000, .options = {.chunk = 32, .centroids = 30, .rope = rope, .weighted = true}});
    std::vector<OvqState> states = problem.states();
    const OvqForward forward = run_forward(problem.inputs(), states);
    const OvqState& state = states[0];
    std::vector<double> keys(state.size() * 16), values(state.size() * 16), counts(state.size());
    for (int64_t t = 0; t < 2000; ++t) {
      const int32_t a = forward.assignments[t];
      if (a == kUnassigned) continue;
      const int64_t n = a < 0 ? ~a : a;
      const double weight = *problem.weights.row(0, t, 0);
      counts[n] += weight;
      for (int64_t i = 0; i < 16; ++i) keys[n * 16 + i] += weight * problem.k.row(0, t, 0)[i];
      for (int64_t i = 0; i < 16; ++i) values[n * 16 + i] += weight * problem.v.row(0, t, 0)[i];
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] /= counts[i / 16];
      values[i] /= counts[i / 16];
    }
    const StateValues<float> actual = values_of(state);
    EXPECT_TRUE(close_to(std::span<const float>(actual.counts), std::span<const double>(counts), 1e-6));
    EXPECT_TRUE(close_to(std::span<const float>(actual.keys), std::span<const double>(keys), 2e-6));
    EXPECT_TRUE(close_to(std::span<const float>(actual.values), std::span<const double>(values), 2e-6));
  }
}

// Small integers and powers of two avoid rounding: every choice, including ties, must equal that of the plain loop. One
// founding chunk, and a second one after a first whose keys all become centroids.
TEST_P(OvqWeights, TiesAreBrokenAsWritten) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const bool founding = seed % 2 == 0;
    OvqCase c{.tokens = founding ? 16 : 32, .query_heads = 2, .kv_heads = 2, .seed = seed};
    c.key_dim = std::vector<int64_t>{2, 3, 18}[seed % 3];
    c.options = {.chunk = 16, .centroids = founding ? 7 : 21, .growth = Growth::all, .weighted = true};
    SCOPED_TRACE(testing::Message() << c << ", seed " << seed);
    OvqProblem problem(c);
    Random random(seed);
    problem.k.each_row([&](float* row) {
      std::generate(row, row + c.key_dim, [&] { return static_cast<float>(random.below(3)) - 1; });
    });
    problem.weights.each_row([&](float* weight) { *weight = 1.0f / static_cast<float>(1 << random.below(3)); });
    EXPECT_EQ(run_forward(problem.inputs()).assignments, expected_forward<double>(problem.inputs()).assignments);
  }
}

TEST_P(OvqWeights, WeightsAreReadInPlace) {
  const OvqProblem problem({.tokens = 40, .kv_heads = 1, .options = {.chunk = 8, .centroids = 10, .weighted = true}});
  OvqInputs inputs = problem.inputs();
  for (auto* view : {&inputs.q, &inputs.k, &inputs.v, &inputs.weights}) {
    view->batch = 3;
    view->batch_stride = 0;
  }
  const OvqForward one = run_forward(problem.inputs()), three = run_forward(inputs);
  for (int64_t b = 0; b < 3; ++b) {
    View<float> part = three.o.view();
    part.data += b * part.batch_stride;
    part.batch = 1;
    EXPECT_TRUE(same_bits(dense(part), one.o.values()));
  }
}

}  // namespace
}  // namespace ovq::kernels::test
