// Backward against the plain loops with the fast path's assignments.
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

// Compares the gradients of the last `tokens` of the case after its first `earlier` ones.
void expect_backward_matches(const OvqCase& c, int64_t earlier = 0) {
  SCOPED_TRACE(testing::Message() << c << ", after " << earlier);
  const OvqProblem problem(c);
  std::vector<OvqState> states = problem.states();
  if (earlier > 0) run_forward(problem.inputs(0, earlier), states);
  const std::vector<OvqState> initial = states;
  const OvqInputs inputs = problem.inputs(earlier, c.tokens - earlier);
  const OvqForward forward = run_forward(inputs, states, {}, c.layout);
  ASSERT_TRUE(valid_assignments(inputs, initial, forward.assignments));
  const auto truth = expected_forward<double>(inputs, initial, forward.assignments);
  const auto plain = expected_forward<float>(inputs, initial, forward.assignments);

  const OvqBackwardProblem backward = random_gradients(inputs, initial, states, c.layout, c.seed + 1000);
  const OvqGradientTensors gradients = run_backward(inputs, forward, backward, c.layout);
  expect_gradients_match(inputs, initial, gradients, expected_backward(inputs, plain, backward),
                         expected_backward(inputs, truth, backward));
  for (size_t s = 0; s < initial.size(); ++s) expect_same_state(backward.initial[s], initial[s]);

  if (earlier > 0) return;
  const OvqBackwardProblem stateless{{}, backward.d_o, {}};
  expect_gradients_match(inputs, {}, run_backward(inputs, forward, stateless, c.layout),
                         expected_backward(inputs, plain, stateless), expected_backward(inputs, truth, stateless));
}

using OvqBackward = OnIsa;
OVQ_ON_EVERY_ISA(OvqBackward);

TEST_P(OvqBackward, PairsOfSizes) {
  constexpr HeadCounts kHeads[] = {{1, 1, 1}, {2, 2, 1}, {1, 4, 2}, {1, 3, 3}, {1, 2, 1}};
  for (const OvqCase& c : pairs_of_sizes(kHeads)) expect_backward_matches(c);
}

TEST_P(OvqBackward, EveryVariantFromEmptyAndFromAState) {
  for (const OvqOptions& options : option_variants(8, 24)) {
    for (int64_t earlier : {0, 3, 8, 19, 40}) {
      expect_backward_matches({.batch = 2,
                               .tokens = earlier + 45,
                               .query_heads = 2,
                               .key_dim = 20,
                               .value_dim = 12,
                               .options = options,
                               .layout = Layout::padded},
                              earlier);
    }
  }
}

TEST_P(OvqBackward, ShortContinuations) {
  for (const bool rope : {false, true}) {
    for (int64_t tokens : {0, 1, 2, 7}) {
      for (int64_t earlier : {5, 8, 16, 30, 31}) {
        expect_backward_matches({.tokens = earlier + tokens,
                                 .query_heads = 4,
                                 .kv_heads = 2,
                                 .options = {.chunk = 8, .centroids = 10, .rope = rope}},
                                earlier);
      }
    }
  }
}

TEST_P(OvqBackward, PackedSequences) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    expect_backward_matches({.tokens = 100,
                             .query_heads = 2,
                             .options = options,
                             .layout = Layout::transposed,
                             .cu_seqlens = {0, 33, 33, 34, 100}});
  }
}

TEST_P(OvqBackward, DictionaryOfManyTiles) {
  expect_backward_matches(
      {.tokens = 1000, .key_dim = 8, .value_dim = 24, .options = {.chunk = 128, .centroids = 3000}});
  expect_backward_matches(
      {.tokens = 1000, .key_dim = 8, .value_dim = 24, .options = {.chunk = 256, .centroids = 3000, .weighted = true}});
}

TEST_P(OvqBackward, DictionaryBeyondTheCache) {
  expect_backward_matches({.tokens = 600,
                           .key_dim = 128,
                           .value_dim = 112,
                           .options = {.chunk = 64, .centroids = 500, .growth = Growth::all}});
}

TEST_P(OvqBackward, BetaOfAnySign) {
  for (float beta : {0.0f, -0.0f, -3.0f, 1e-30f, -1e-30f}) {
    expect_backward_matches({.tokens = 70, .query_heads = 2, .options = {.chunk = 16, .centroids = 20}, .beta = beta});
    expect_backward_matches({.tokens = 70, .options = {.chunk = 16, .centroids = 20, .rope = true}, .beta = beta}, 40);
  }
}

TEST_P(OvqBackward, LargeLogits) {
  for (float beta : {1000.0f, -1000.0f}) {
    expect_backward_matches({.tokens = 300,
                             .query_heads = 2,
                             .key_dim = 64,
                             .value_dim = 64,
                             .options = {.chunk = 32, .centroids = 40},
                             .beta = beta});
  }
}

// Few centroids take many tokens: a count's gradient sums over all chunks.
TEST_P(OvqBackward, LongRunWithWeights) {
  expect_backward_matches(
      {.tokens = 3000, .key_dim = 8, .value_dim = 8, .options = {.chunk = 16, .centroids = 3, .weighted = true}});
}

TEST_P(OvqBackward, RepeatedKeys) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    expect_backward_matches({.tokens = 100, .options = options, .keys = Keys::repeated});
  }
}

TEST_P(OvqBackward, AbsentStateGradientsAreZeroOrNotWanted) {
  const OvqProblem problem({.tokens = 60, .options = {.chunk = 8, .centroids = 10}});
  std::vector<OvqState> states = problem.states();
  run_forward(problem.inputs(0, 20), states);
  const std::vector<OvqState> initial = states;
  const OvqInputs inputs = problem.inputs(20, 40);
  const OvqForward forward = run_forward(inputs, states);
  OvqBackwardProblem backward = random_gradients(inputs, initial, states, Layout::dense, 1);
  for (StateTensors& d : backward.d_final) {
    for (Tensor* tensor : {&d.keys, &d.pending_values}) tensor->fill(0.0f);
  }
  const OvqGradientTensors expected = run_backward(inputs, forward, backward);

  const std::vector<OvqStateGradients<const float>> d_final{{.keys = {},
                                                             .values = backward.d_final[0].values.view(),
                                                             .pending_keys = backward.d_final[0].pending_keys.view(),
                                                             .pending_values = {}}};
  const Tensor d_q({1, 40, 1, 16}), d_k({1, 40, 1, 16}), d_v({1, 40, 1, 16}), d_values({1, initial[0].size(), 1, 16});
  std::vector<float> d_beta(1);
  const std::vector<OvqStateGradients<float>> d_initial{
      {.keys = {}, .values = d_values.view(), .pending_keys = {}, .pending_values = {}}};
  const OvqSaved saved{forward.o.view(), forward.lse.view(), forward.assignments, initial};
  ovq_attention_backward(inputs, saved, {backward.d_o.view(), d_final},
                         {d_q.view(), d_k.view(), d_v.view(), d_beta, d_initial});
  EXPECT_TRUE(same_bits(d_q.values(), expected.d_q.values()));
  EXPECT_TRUE(same_bits(d_k.values(), expected.d_k.values()));
  EXPECT_TRUE(same_bits(d_v.values(), expected.d_v.values()));
  EXPECT_TRUE(same_bits(d_values.values(), expected.d_initial[0].values.values()));
  ovq_attention_backward(inputs, saved, {backward.d_o.view(), d_final},
                         {d_q.view(), d_k.view(), d_v.view(), d_beta, {}});
  EXPECT_TRUE(same_bits(d_k.values(), expected.d_k.values()));
}

// Gradients of two chained pieces = one pass.
TEST_P(OvqBackward, ChainedPiecesAreOnePass) {
  for (const OvqOptions& options : option_variants(8, 14)) {
    for (int64_t cut : {5, 8, 21, 32}) {
      const OvqCase c{.tokens = 60, .query_heads = 2, .options = options};
      SCOPED_TRACE(testing::Message() << c << ", cut at " << cut);
      const OvqProblem problem(c);
      std::vector<OvqState> states = problem.states();
      const OvqForward forward = run_forward(problem.inputs(), states);
      const OvqBackwardProblem backward = random_gradients(problem.inputs(), problem.states(), states, c.layout, 4);
      const OvqGradientTensors whole = run_backward(problem.inputs(), forward, backward);

      const OvqInputs pieces[] = {problem.inputs(0, cut), problem.inputs(cut, 60 - cut)};
      std::vector<OvqState> running = problem.states();
      const OvqForward first = run_forward(pieces[0], running);
      const std::vector<OvqState> middle = running;
      const OvqForward second = run_forward(pieces[1], running);
      const auto d_o = [&](int64_t from, int64_t count) {
        Tensor part({1, count, 2, 16});
        for (int64_t t = 0; t < count; ++t) std::copy_n(backward.d_o.row(0, from + t, 0), 32, part.row(0, t, 0));
        return part;
      };
      const OvqGradientTensors later = run_backward(pieces[1], second, {middle, d_o(cut, 60 - cut), backward.d_final});
      const OvqGradientTensors earlier =
          run_backward(pieces[0], first, {problem.states(), d_o(0, cut), later.d_initial});

      const auto expect = [&](const char* name, const Tensor& one, const Tensor& two, const Tensor& all) {
        std::vector<float> joined = one.values();
        const std::vector<float> rest = two.values();
        joined.insert(joined.end(), rest.begin(), rest.end());
        const std::vector<float> values = all.values();
        const std::vector<double> truth(values.begin(), values.end());
        EXPECT_TRUE(close_to(std::span<const float>(joined), std::span<const double>(truth), 2e-5)) << name;
      };
      expect("d_q", earlier.d_q, later.d_q, whole.d_q);
      expect("d_k", earlier.d_k, later.d_k, whole.d_k);
      expect("d_v", earlier.d_v, later.d_v, whole.d_v);
      if (options.weighted) expect("d_weights", earlier.d_weights, later.d_weights, whole.d_weights);
      for (size_t h = 0; h < 2; ++h) {
        EXPECT_NEAR(earlier.d_beta[h] + later.d_beta[h], whole.d_beta[h], 1e-4 * (1 + std::abs(whole.d_beta[h])));
      }
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
