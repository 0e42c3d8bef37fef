// Forward against the plain loops with the fast path's assignments, and tests of the assignments themselves.
#include "ovq/ops/ovq_attention/ovq_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ovq/ops/attention/kernel.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/choices.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

void expect_state_matches(const OvqInputs& inputs, std::span<const OvqState> actual, const OvqExpected<float>& plain,
                          const OvqExpected<double>& truth) {
  const auto truths = final_values(inputs, truth);
  const auto plains = final_values(inputs, plain);
  for (size_t s = 0; s < actual.size(); ++s) {
    SCOPED_TRACE(testing::Message() << "state " << s);
    const StateValues<float> values = values_of(actual[s]);
    EXPECT_TRUE(calibrated({.actual = values.keys, .plain = plains[s].keys, .truth = truths[s].keys}));
    EXPECT_TRUE(calibrated({.actual = values.values, .plain = plains[s].values, .truth = truths[s].values}));
    EXPECT_TRUE(same_bits(values.pending_keys, plains[s].pending_keys));
    EXPECT_TRUE(same_bits(values.pending_values, plains[s].pending_values));
    EXPECT_TRUE(calibrated({.actual = values.counts, .plain = plains[s].counts, .truth = truths[s].counts}));
    EXPECT_TRUE(same_bits(values.pending_weights, plains[s].pending_weights));
    EXPECT_TRUE(calibrated({.actual = values.shrinkage, .plain = plains[s].shrinkage, .truth = truths[s].shrinkage}));
  }
}

void expect_counts_match(const OvqInputs& inputs, std::span<const OvqState> actual, const OvqExpected<double>& truth) {
  const int64_t kv_heads = inputs.k.heads;
  for (size_t i = 0; i < truth.results.size(); ++i) {
    const int64_t sequence = static_cast<int64_t>(i) / kv_heads, head = static_cast<int64_t>(i) % kv_heads;
    const bool packed = !inputs.cu_seqlens.empty();
    const auto counts = actual[packed ? sequence : 0].counts(packed ? 0 : sequence, head);
    EXPECT_EQ(std::vector<double>(counts.begin(), counts.end()), truth.results[i].state.dictionary.counts);
  }
}

// With and without states: the same outputs, close to the plain loops, and assignments as docs/semantics.md defines
// them.
void expect_forward_matches(const OvqCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const OvqProblem problem(c);
  const OvqInputs inputs = problem.inputs();
  const OvqForward forward = run_forward(inputs, {}, {}, c.layout);
  ASSERT_TRUE(valid_assignments(inputs, {}, forward.assignments));

  const auto truth = expected_forward<double>(inputs, {}, forward.assignments);
  const auto plain = expected_forward<float>(inputs, {}, forward.assignments);
  EXPECT_TRUE(calibrated({.actual = forward.o.values(), .plain = plain.o, .truth = truth.o}));
  EXPECT_TRUE(calibrated({.actual = forward.lse.values(), .plain = plain.lse, .truth = truth.lse, .magnitude = 1}));
  EXPECT_TRUE(optimal_choices(inputs, {}, truth));

  std::vector<OvqState> states = problem.states();
  const OvqForward with_states = run_forward(inputs, states);
  EXPECT_TRUE(same_bits(with_states.o.values(), forward.o.values()));
  EXPECT_TRUE(same_bits(with_states.lse.values(), forward.lse.values()));
  EXPECT_EQ(with_states.assignments, forward.assignments);
  expect_state_matches(inputs, states, plain, truth);
  if (!c.options.weighted) expect_counts_match(inputs, states, truth);
}

using OvqAttentionForward = OnIsa;
OVQ_ON_EVERY_ISA(OvqAttentionForward);

TEST_P(OvqAttentionForward, ShortSequencesOfAnySize) {
  for (int64_t tokens : kShortTimes) {
    for (int64_t dim : kDims) {
      for (int64_t chunk : {1, 7, 16}) {
        expect_forward_matches({.tokens = tokens,
                                .key_dim = dim,
                                .value_dim = kDims[(tokens + dim) % 7],
                                .options = {.chunk = chunk, .centroids = kCentroids[(tokens + dim + chunk) % 4]},
                                .seed = static_cast<uint64_t>(tokens * 1000 + dim)});
      }
    }
  }
}

TEST_P(OvqAttentionForward, PairsOfSizes) {
  constexpr HeadCounts kHeads[] = {{1, 1, 1}, {2, 2, 1}, {1, 4, 2}, {1, 6, 3}, {2, 3, 3}};
  for (const OvqCase& c : pairs_of_sizes(kHeads)) expect_forward_matches(c);
}

TEST_P(OvqAttentionForward, EveryVariant) {
  for (int64_t chunk : {8, 16}) {
    for (const OvqOptions& options : option_variants(chunk, 24)) {
      expect_forward_matches({.batch = 2,
                              .tokens = 6 * chunk + 3,
                              .query_heads = 2,
                              .key_dim = 20,
                              .value_dim = 12,
                              .options = options,
                              .layout = Layout::padded});
    }
  }
}

TEST_P(OvqAttentionForward, PackedSequences) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    expect_forward_matches({.tokens = 100,
                            .query_heads = 2,
                            .kv_heads = 2,
                            .options = options,
                            .layout = Layout::transposed,
                            .cu_seqlens = {0, 33, 33, 34, 100}});
  }
}

TEST_P(OvqAttentionForward, DictionaryOfManyTiles) {
  expect_forward_matches({.tokens = 1500, .key_dim = 8, .value_dim = 24, .options = {.chunk = 128, .centroids = 6000}});
  expect_forward_matches(
      {.tokens = 900, .query_heads = 2, .options = {.chunk = 64, .centroids = 900, .growth = Growth::all}});
  expect_forward_matches(
      {.tokens = 1500, .key_dim = 8, .value_dim = 24, .options = {.chunk = 256, .centroids = 6000, .weighted = true}});
}

TEST_P(OvqAttentionForward, DictionaryBeyondTheCache) {
  expect_forward_matches({.tokens = 1100,
                          .key_dim = 128,
                          .value_dim = 112,
                          .options = {.chunk = 64, .centroids = 1000, .growth = Growth::all}});
}

TEST_P(OvqAttentionForward, BetaOfAnySign) {
  for (float beta : {0.0f, -0.0f, -3.0f, 1e-30f, -1e-30f}) {
    expect_forward_matches({.tokens = 70, .query_heads = 2, .options = {.chunk = 16, .centroids = 20}, .beta = beta});
  }
}

TEST_P(OvqAttentionForward, LargeLogits) {
  for (float beta : {1000.0f, -1000.0f}) {
    for (bool rope : {false, true}) {
      expect_forward_matches({.tokens = 300,
                              .query_heads = 2,
                              .key_dim = 64,
                              .value_dim = 64,
                              .options = {.chunk = 32, .centroids = 40, .rope = rope},
                              .beta = beta});
    }
  }
}

TEST_P(OvqAttentionForward, RepeatedKeys) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    expect_forward_matches({.tokens = 100, .kv_heads = 1, .options = options, .keys = Keys::repeated});
  }
}

// Few centroids take many tokens, so counts and their bias grow.
TEST_P(OvqAttentionForward, LongRun) {
  for (const bool weighted : {false, true}) {
    expect_forward_matches(
        {.tokens = 6000, .key_dim = 8, .value_dim = 8, .options = {.chunk = 16, .centroids = 3, .weighted = weighted}});
  }
}

TEST_P(OvqAttentionForward, ZeroRowStaysUnderNormalize) {
  OvqProblem problem({.tokens = 40, .options = {.chunk = 8, .centroids = 6, .normalize = true}});
  problem.k.fill(0.0f);
  std::vector<OvqState> states = problem.states();
  const OvqForward forward = run_forward(problem.inputs(), states);
  for (float key : dense(states[0].keys())) EXPECT_EQ(key, 0.0f);
  for (float value : forward.o.values()) EXPECT_TRUE(std::isfinite(value));
}

// Small integers and a rate of 1/2 avoid rounding: every choice, including ties, must equal that of the plain loop.
TEST_P(OvqAttentionForward, TiesAreBrokenAsWritten) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    OvqCase c{.tokens = 64, .query_heads = 2, .kv_heads = 2, .seed = seed};
    c.key_dim = std::vector<int64_t>{2, 3, 18}[seed % 3];
    c.options = {
        .chunk = seed % 2 == 0 ? 9 : 16, .centroids = 40, .rate = 0.5f, .rope = seed % 4 > 1 && c.key_dim % 2 == 0};
    if (seed % 5 == 0) c.options.new_centroids = NewCentroids::random;
    SCOPED_TRACE(testing::Message() << c << ", seed " << seed);
    OvqProblem problem(c);
    Random random(seed);
    problem.k.each_row([&](float* row) {
      std::generate(row, row + c.key_dim, [&] { return static_cast<float>(random.below(3)) - 1; });
    });
    EXPECT_EQ(run_forward(problem.inputs()).assignments, expected_forward<double>(problem.inputs()).assignments);
  }
}

TEST_P(OvqAttentionForward, RanksAreThoseOfAStableSort) {
  constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min(), kLargest = std::numeric_limits<int64_t>::max();
  Random random(3);
  for (int64_t count = 1; count <= 40; ++count) {
    std::vector<int64_t> numbers(detail::padded(count)), ranks(detail::padded(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t pick = random.below(9);
      numbers[i] = pick == 0 ? kSmallest : pick == 1 ? kLargest : pick - 5;
    }
    detail::read_kernels().rank(numbers.data(), count, ranks.data());
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return numbers[a] < numbers[b]; });
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(ranks[order[i]], i) << count;
  }
}

TEST_P(OvqAttentionForward, NanKeysKeepIndicesValid) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const OvqOptions& options : option_variants(8, 12)) {
    for (const std::vector<int64_t>& places : {std::vector<int64_t>{0}, {3}, {11, 12, 30}, {0, 1, 2, 3, 4, 5, 6, 7}}) {
      for (float poison : {nan, infinity, -infinity}) {
        OvqProblem problem({.tokens = 45, .options = options});
        for (int64_t t : places) problem.k.row(0, t, 0)[5] = poison;
        std::vector<OvqState> states = problem.states();
        const OvqForward forward = run_forward(problem.inputs(), states);
        EXPECT_TRUE(valid_assignments(problem.inputs(), problem.states(), forward.assignments));
      }
    }
  }
}

// NaN compares as -inf: the key is the least similar of all and founds a centroid; nothing joins it.
TEST_P(OvqAttentionForward, NanKeyFounds) {
  OvqProblem problem({.tokens = 32, .options = {.chunk = 8, .centroids = 12}});
  const int64_t places[] = {5, 20};
  for (int64_t t : places) problem.k.row(0, t, 0)[2] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<int32_t> assignments = run_forward(problem.inputs()).assignments;
  for (int64_t t : places) {
    EXPECT_LT(assignments[t], 0);
    EXPECT_EQ(std::count(assignments.begin(), assignments.end(), ~assignments[t]), 0);
  }
}

TEST_P(OvqAttentionForward, OptionalOutputsMayBeAbsent) {
  const OvqProblem problem({.tokens = 50, .options = {.chunk = 16, .centroids = 20}});
  const OvqForward forward = run_forward(problem.inputs());
  const Tensor o({1, 50, 1, 16});
  ovq_attention_forward(problem.inputs(), {.o = o.view(), .lse = {}, .assignments = {}});
  EXPECT_TRUE(same_bits(o.values(), forward.o.values()));
}

TEST_P(OvqAttentionForward, ForcedAssignmentsReplaceTheChoice) {
  const OvqProblem problem({.tokens = 50, .query_heads = 2, .options = {.chunk = 16, .centroids = 20}});
  const OvqInputs inputs = problem.inputs();
  OvqInputs other_inputs = inputs;
  other_inputs.options.new_centroids = NewCentroids::random;
  const std::vector<int32_t> forced = run_forward(other_inputs).assignments;
  const OvqForward forward = run_forward(inputs, {}, forced);
  EXPECT_EQ(forward.assignments, forced);
  EXPECT_NE(run_forward(inputs).assignments, forced);
  EXPECT_TRUE(calibrated({.actual = forward.o.values(),
                          .plain = expected_forward<float>(inputs, {}, forced).o,
                          .truth = expected_forward<double>(inputs, {}, forced).o}));
}

TEST_P(OvqAttentionForward, ExpandedInputsAreReadInPlace) {
  const OvqProblem problem({.tokens = 40, .options = {.chunk = 16, .centroids = 20}});
  const OvqForward forward = run_forward(problem.inputs());
  OvqInputs inputs = problem.inputs();
  for (auto* view : {&inputs.q, &inputs.k, &inputs.v}) {
    view->batch = 3;
    view->batch_stride = 0;
  }
  inputs.q.heads = 2;
  inputs.q.head_stride = 0;
  const std::vector<float> beta(2, problem.beta[0]);
  inputs.beta = beta;
  const OvqForward expanded = run_forward(inputs);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      const View<float> view = expanded.o.view();
      View<float> part{view.row(b, 0, h), 1, 40, 1, 16, 0, view.time_stride, 0};
      EXPECT_TRUE(same_bits(dense(part), forward.o.values()));
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
