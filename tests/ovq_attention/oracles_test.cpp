// Properties of the fast path that do not depend on the plain loops: repetition, causal attention, means, causality.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "ovq/ops/attention/attention.h"
#include "ovq/ops/attention/reference.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

using OvqOracles = OnIsa;
OVQ_ON_EVERY_ISA(OvqOracles);

// Causal attention over given rows by the plain loop, for one query head after the other: [T, Hq, dv].
template <class Scalar>
std::vector<Scalar> plain_attention(const OvqInputs& inputs, View<const float> keys, View<const float> values) {
  std::vector<Scalar> o(inputs.q.time * inputs.q.heads * inputs.v.dim);
  for (int64_t h = 0; h < inputs.q.heads; ++h) {
    const int64_t kv_head = h / (inputs.q.heads / inputs.k.heads);
    const auto result = reference::attention_forward(reference::AttentionHead<Scalar>{
        reference::load<Scalar>(inputs.q, 0, h, 0, inputs.q.time),
        reference::load<Scalar>(keys, 0, kv_head, 0, keys.time),
        reference::load<Scalar>(values, 0, kv_head, 0, keys.time), inputs.beta[h], 0, keys.time - inputs.q.time});
    for (int64_t t = 0; t < inputs.q.time; ++t) {
      std::copy_n(result.o[t], inputs.v.dim, o.begin() + (t * inputs.q.heads + h) * inputs.v.dim);
    }
  }
  return o;
}

TEST_P(OvqOracles, CountsAreRepetitions) {
  for (int64_t dim : {8, 15, 64}) {
    const OvqProblem problem(
        {.tokens = 99, .query_heads = 2, .key_dim = dim, .value_dim = 20, .options = {.chunk = 16, .centroids = 12}});
    std::vector<OvqState> states = problem.states();
    run_forward(problem.inputs(0, 96), states);
    ASSERT_EQ(states[0].pending(), 0);
    const OvqInputs inputs = problem.inputs(96, 3);
    Tensor keys({1, 99, 1, dim}), values({1, 99, 1, 20});
    int64_t row = 0;
    const auto append = [&](const float* key, const float* value) {
      std::copy_n(key, dim, keys.row(0, row, 0));
      std::copy_n(value, 20, values.row(0, row++, 0));
    };
    for (int64_t n = 0; n < states[0].size(); ++n) {
      for (int64_t i = 0; i < states[0].counts(0, 0)[n]; ++i) {
        append(states[0].keys().row(0, n, 0), states[0].values().row(0, n, 0));
      }
    }
    for (int64_t t = 0; t < 3; ++t) append(inputs.k.row(0, t, 0), inputs.v.row(0, t, 0));
    ASSERT_EQ(row, 99);

    const auto truth = plain_attention<double>(inputs, keys.view(), values.view());
    const auto plain = plain_attention<float>(inputs, keys.view(), values.view());
    EXPECT_TRUE(calibrated({.actual = run_forward(inputs, states).o.values(), .plain = plain, .truth = truth}));
    const Tensor repeated({1, 3, 2, 20});
    attention_forward({.q = inputs.q, .k = keys.view(), .v = values.view(), .beta = inputs.beta, .query_offset = 96},
                      {.o = repeated.view(), .lse = {}});
    EXPECT_TRUE(calibrated({.actual = repeated.values(), .plain = plain, .truth = truth}));
  }
}

TEST_P(OvqOracles, EveryKeyACentroidIsCausalAttention) {
  for (int64_t tokens : {1, 17, 33, 129, 300}) {
    for (const OvqOptions& options :
         {OvqOptions{.chunk = 16, .centroids = 2 * tokens * tokens},
          OvqOptions{.chunk = 16, .centroids = int64_t{1} << 40},
          OvqOptions{.chunk = 16, .centroids = tokens, .growth = Growth::all},
          OvqOptions{.chunk = tokens, .centroids = 3}, OvqOptions{.chunk = 1000, .centroids = 3}}) {
      const OvqCase c{
          .tokens = tokens, .query_heads = 4, .kv_heads = 2, .key_dim = 24, .value_dim = 40, .options = options};
      SCOPED_TRACE(testing::Message() << c);
      const OvqProblem problem(c);
      const OvqInputs inputs = problem.inputs();
      EXPECT_TRUE(calibrated({.actual = run_forward(inputs).o.values(),
                              .plain = plain_attention<float>(inputs, inputs.k, inputs.v),
                              .truth = plain_attention<double>(inputs, inputs.k, inputs.v)}));
    }
  }
}

TEST_P(OvqOracles, CentroidsAreMeansAndCountsAddUp) {
  for (const bool rope : {false, true}) {
    const OvqProblem problem({.tokens = 2000, .kv_heads = 1, .options = {.chunk = 32, .centroids = 30, .rope = rope}});
    std::vector<OvqState> states = problem.states();
    const OvqForward forward = run_forward(problem.inputs(), states);
    const OvqState& state = states[0];
    std::vector<double> keys(state.size() * 16), values(state.size() * 16);
    std::vector<int64_t> counts(state.size());
    for (int64_t t = 0; t < 2000; ++t) {
      const int32_t a = forward.assignments[t];
      if (a == kUnassigned) continue;
      const int64_t n = a < 0 ? ~a : a;
      ++counts[n];
      for (int64_t i = 0; i < 16; ++i) keys[n * 16 + i] += problem.k.row(0, t, 0)[i];
      for (int64_t i = 0; i < 16; ++i) values[n * 16 + i] += problem.v.row(0, t, 0)[i];
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] /= static_cast<double>(counts[i / 16]);
      values[i] /= static_cast<double>(counts[i / 16]);
    }
    EXPECT_TRUE(same_bits(state.counts(0, 0), std::span<const int64_t>(counts)));
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 2000 - state.pending());
    const StateValues<float> actual = values_of(state);
    EXPECT_TRUE(close_to(std::span<const float>(actual.keys), std::span<const double>(keys), 2e-6));
    EXPECT_TRUE(close_to(std::span<const float>(actual.values), std::span<const double>(values), 2e-6));
  }
}

// Tokens from `from` on are set to NaN, infinity or huge values; earlier results stay the same, even in the same chunk.
TEST_P(OvqOracles, FutureNeverChangesThePast) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const OvqOptions& options : option_variants(32, 24)) {
    SCOPED_TRACE(testing::Message() << OvqCase{.options = options});
    const OvqProblem clean({.tokens = 140, .query_heads = 2, .kv_heads = 2, .options = options});
    const OvqForward expected = run_forward(clean.inputs());
    for (float poison : {nan, infinity, 1e30f}) {
      for (int64_t from : {1, 31, 50, 95, 96, 111}) {
        OvqProblem poisoned = clean;
        for (int64_t t = from; t < 140; ++t) {
          for (int64_t h = 0; h < 2; ++h) {
            for (Tensor* tensor : {&poisoned.q, &poisoned.k, &poisoned.v})
              std::fill_n(tensor->row(0, t, h), 16, poison);
            if (options.weighted) *poisoned.weights.row(0, t, h) = 1e30f;
          }
        }
        const OvqForward actual = run_forward(poisoned.inputs());
        EXPECT_TRUE(same_bits(dense(actual.o.slice(0, from)), dense(expected.o.slice(0, from))))
            << "from " << from << " with " << poison;
        EXPECT_TRUE(same_bits(dense(actual.lse.slice(0, from)), dense(expected.lse.slice(0, from))));
        const int64_t written = std::max<int64_t>(from / 32 - (options.rope ? 1 : 0), 0) * 32 * 2;
        EXPECT_TRUE(
            same_bits(std::span(actual.assignments).first(written), std::span(expected.assignments).first(written)));
      }
    }
  }
}

TEST_P(OvqOracles, PermutingABatchPermutesTheOutputs) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    const OvqProblem problem({.batch = 3, .tokens = 70, .query_heads = 2, .options = options});
    OvqProblem swapped = problem;
    std::vector<Tensor*> tensors{&swapped.q, &swapped.k, &swapped.v};
    if (options.weighted) tensors.push_back(&swapped.weights);
    for (Tensor* tensor : tensors) {
      const View<float> view = tensor->view();
      std::swap_ranges(view.row(0, 0, 0), view.row(1, 0, 0), view.row(2, 0, 0));
    }
    const OvqForward expected = run_forward(problem.inputs()), actual = run_forward(swapped.inputs());
    std::vector<float> o = expected.o.values();
    std::vector<int32_t> assignments = expected.assignments;
    std::swap_ranges(o.begin(), o.begin() + 70 * 32, o.begin() + 2 * 70 * 32);
    std::swap_ranges(assignments.begin(), assignments.begin() + 70, assignments.begin() + 2 * 70);
    EXPECT_TRUE(same_bits(actual.o.values(), o));
    EXPECT_TRUE(same_bits(actual.assignments, assignments));
  }
}

TEST_P(OvqOracles, RandomFoundersFollowTheSeed) {
  OvqProblem problem({.tokens = 64,
                      .query_heads = 2,
                      .kv_heads = 2,
                      .options = {.chunk = 16, .centroids = 24, .new_centroids = NewCentroids::random, .seed = 1}});
  const std::vector<int32_t> first = run_forward(problem.inputs()).assignments;
  EXPECT_EQ(run_forward(problem.inputs()).assignments, first);
  problem.options.seed = 2;
  EXPECT_NE(run_forward(problem.inputs()).assignments, first);
}

}  // namespace
}  // namespace ovq::kernels::test
