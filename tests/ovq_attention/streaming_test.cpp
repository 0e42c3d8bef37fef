// A single pass equals any split into pieces, token by token, and packing with other sequences, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/choices.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

struct Streamed {
  Tensor o, lse;
  std::vector<int32_t> assignments;  // [B, T, Hkv]
  std::vector<OvqState> states;
};

// The tokens of a batch, in pieces of the given lengths.
Streamed stream(const OvqProblem& problem, const std::vector<int64_t>& pieces) {
  const View<float> q = problem.q.view(), k = problem.k.view(), v = problem.v.view();
  Streamed result{Tensor({q.batch, q.time, q.heads, v.dim}), Tensor({q.batch, q.time, q.heads, 1}),
                  std::vector<int32_t>(q.batch * q.time * k.heads, kUnassigned), problem.states()};
  int64_t first = 0;
  for (int64_t count : pieces) {
    const OvqInputs inputs = problem.inputs(first, count);
    const int64_t pending = result.states[0].pending();
    std::vector<int32_t> assignments(ovq_assignment_count(inputs, result.states));
    ovq_attention_forward(inputs, {result.o.slice(first, count), result.lse.slice(first, count), assignments},
                          result.states);
    for (int64_t b = 0; b < q.batch; ++b) {
      for (int64_t t = 0; t < pending + count; ++t) {
        for (int64_t h = 0; h < k.heads; ++h) {
          int32_t& merged = result.assignments[(b * q.time + first - pending + t) * k.heads + h];
          EXPECT_EQ(merged, kUnassigned) << "assigned twice";
          merged = assignments[(b * (pending + count) + t) * k.heads + h];
        }
      }
    }
    first += count;
  }
  EXPECT_TRUE(result.o.fences_intact());
  return result;
}

void expect_same(const Streamed& actual, const Streamed& expected) {
  EXPECT_TRUE(same_bits(actual.o.values(), expected.o.values()));
  EXPECT_TRUE(same_bits(actual.lse.values(), expected.lse.values()));
  EXPECT_TRUE(same_bits(actual.assignments, expected.assignments));
  ASSERT_EQ(actual.states.size(), expected.states.size());
  for (size_t s = 0; s < expected.states.size(); ++s) expect_same_state(actual.states[s], expected.states[s]);
}

std::vector<int64_t> equal_pieces(int64_t tokens, int64_t length) {
  std::vector<int64_t> pieces;
  for (int64_t first = 0; first < tokens; first += length) pieces.push_back(std::min(length, tokens - first));
  return pieces;
}

std::vector<int64_t> random_pieces(int64_t tokens, int64_t longest, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> pieces;
  for (int64_t first = 0; first < tokens; first += pieces.back()) {
    pieces.push_back(std::min(random.below(longest + 1), tokens - first));
  }
  return pieces;
}

void expect_pieces_are_one_pass(const OvqCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const OvqProblem problem(c);
  const Streamed whole = stream(problem, {c.tokens});
  if (c.dtype == StateDtype::float32) {
    const OvqForward stateless = run_forward(problem.inputs());
    EXPECT_TRUE(same_bits(stateless.o.values(), whole.o.values()));
    EXPECT_TRUE(same_bits(stateless.assignments, whole.assignments));
  }
  const int64_t chunk = c.options.chunk;
  for (int64_t length : {int64_t{1}, int64_t{2}, int64_t{7}, chunk, chunk + 1, 2 * chunk}) {
    SCOPED_TRACE(testing::Message() << "pieces of " << length);
    expect_same(stream(problem, equal_pieces(c.tokens, length)), whole);
  }
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "random pieces " << seed);
    expect_same(stream(problem, random_pieces(c.tokens, seed == 3 ? 3 * chunk : 20, seed)), whole);
  }
}

using OvqStreaming = OnIsa;
OVQ_ON_EVERY_ISA(OvqStreaming);

TEST_P(OvqStreaming, PiecesAreOnePassInEveryVariant) {
  for (const StateDtype dtype : kStateDtypes) {
    for (const OvqOptions& options : option_variants(16, 24)) {
      expect_pieces_are_one_pass({.batch = 2,
                                  .tokens = 100,
                                  .query_heads = 4,
                                  .kv_heads = 2,
                                  .key_dim = 20,
                                  .value_dim = 12,
                                  .options = options,
                                  .dtype = dtype});
    }
  }
}

TEST_P(OvqStreaming, PiecesAreOnePassAtAnySize) {
  for (int64_t i = 0; i < 7; ++i) {
    const int64_t chunk = std::vector<int64_t>{1, 7, 16, 32, 128}[i % 5];
    expect_pieces_are_one_pass({.tokens = std::min<int64_t>(300, 9 * chunk),
                                .query_heads = 3,
                                .kv_heads = i % 2 == 0 ? 1 : 3,
                                .key_dim = kDims[i],
                                .value_dim = kDims[(3 * i + 1) % 7],
                                .options = {.chunk = chunk, .centroids = 40, .rope = i % 2 == 1 && kDims[i] % 2 == 0},
                                .layout = kLayouts[i % 3],
                                .dtype = kStateDtypes[i / 5]});
  }
  // Dims of one vector, of pairs of vectors, and with a remainder.
  for (const int64_t dim : {16, 20, 48, 63, 64, 90}) {
    expect_pieces_are_one_pass({.tokens = 80,
                                .key_dim = dim,
                                .value_dim = 110 - dim,
                                .options = {.chunk = 16, .centroids = 40},
                                .dtype = StateDtype::bfloat16});
  }
}

TEST_P(OvqStreaming, PiecesAreOnePassWithRepeatedKeysAndLargeLogits) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    expect_pieces_are_one_pass({.tokens = 90, .options = options, .keys = Keys::repeated, .beta = 500.0f});
  }
}

TEST_P(OvqStreaming, PiecesAreOnePassWithALargeDictionary) {
  for (const StateDtype dtype : kStateDtypes) {
    expect_pieces_are_one_pass({.tokens = 1000,
                                .query_heads = 2,
                                .key_dim = 8,
                                .value_dim = 8,
                                .options = {.chunk = 64, .centroids = 3000},
                                .dtype = dtype});
  }
}

using Range = std::pair<int64_t, int64_t>;  // first token, count

// Selects these tokens, one range after the other, as one sequence or packed.
OvqProblem gather(const OvqProblem& problem, const std::vector<Range>& ranges, bool packed) {
  OvqProblem part = problem;
  part.cu_seqlens = {0};
  for (const auto& [first, count] : ranges) part.cu_seqlens.push_back(part.cu_seqlens.back() + count);
  const auto copy = [&](const Tensor& from, Tensor& to) {
    const View<float> view = from.view();
    to = Tensor({1, part.cu_seqlens.back(), view.heads, view.dim});
    int64_t at = 0;
    for (const auto& [first, count] : ranges) {
      for (int64_t t = first; t < first + count; ++t, ++at) {
        for (int64_t h = 0; h < view.heads; ++h) std::copy_n(view.row(0, t, h), view.dim, to.row(0, at, h));
      }
    }
  };
  copy(problem.q, part.q);
  copy(problem.k, part.k);
  copy(problem.v, part.v);
  if (problem.options.weighted) copy(problem.weights, part.weights);
  if (!packed) part.cu_seqlens.clear();
  return part;
}

TEST_P(OvqStreaming, PackedIsTheSeparateSequences) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    const StateDtype dtype = kStateDtypes[options.rope || options.weighted ? 1 : 0];
    SCOPED_TRACE((testing::Message() << OvqCase{.options = options, .dtype = dtype}));
    const std::vector<int64_t> cu_seqlens{0, 33, 33, 34, 100, 148};
    const OvqProblem problem({.tokens = 148,
                              .query_heads = 2,
                              .options = options,
                              .layout = Layout::transposed,
                              .cu_seqlens = cu_seqlens,
                              .dtype = dtype});
    std::vector<OvqState> states = problem.states();
    const OvqForward packed = run_forward(problem.inputs(), states);
    int64_t assignment = 0;
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      const int64_t first = cu_seqlens[s], count = cu_seqlens[s + 1] - first;
      const OvqProblem one = gather(problem, {{first, count}}, false);
      std::vector<OvqState> state = one.states();
      const OvqForward alone = run_forward(one.inputs(), state);
      EXPECT_TRUE(same_bits(dense(packed.o.slice(first, count)), alone.o.values()));
      EXPECT_TRUE(same_bits(dense(packed.lse.slice(first, count)), alone.lse.values()));
      EXPECT_TRUE(same_bits(std::span<const int32_t>(packed.assignments).subspan(assignment, count),
                            std::span<const int32_t>(alone.assignments)));
      expect_same_state(states[s], state[0]);
      assignment += count;
    }
  }
}

TEST_P(OvqStreaming, PackedPiecesAreOnePass) {
  for (const OvqOptions& options : option_variants(16, 24)) {
    const StateDtype dtype = kStateDtypes[options.rope || options.weighted ? 0 : 1];
    SCOPED_TRACE((testing::Message() << OvqCase{.options = options, .dtype = dtype}));
    const std::vector<int64_t> cu_seqlens{0, 33, 35, 100, 148};
    const std::vector<int64_t> cuts{20, 2, 17, 0};
    const OvqProblem problem(
        {.tokens = 148, .query_heads = 2, .options = options, .cu_seqlens = cu_seqlens, .dtype = dtype});
    std::vector<OvqState> expected_states = problem.states(), states = problem.states();
    const OvqForward whole = run_forward(problem.inputs(), expected_states);
    std::vector<Range> ranges[2];
    for (size_t s = 0; s < cuts.size(); ++s) {
      ranges[0].push_back({cu_seqlens[s], cuts[s]});
      ranges[1].push_back({cu_seqlens[s] + cuts[s], cu_seqlens[s + 1] - cu_seqlens[s] - cuts[s]});
    }
    for (const std::vector<Range>& part : ranges) {
      const OvqProblem piece = gather(problem, part, true);
      const OvqForward forward = run_forward(piece.inputs(), states);
      for (size_t s = 0; s < part.size(); ++s) {
        EXPECT_TRUE(same_bits(dense(forward.o.slice(piece.cu_seqlens[s], part[s].second)),
                              dense(whole.o.slice(part[s].first, part[s].second))))
            << "sequence " << s;
      }
    }
    for (size_t s = 0; s < states.size(); ++s) expect_same_state(states[s], expected_states[s]);
  }
}

// After the limit has changed, the dictionary grows by at most a chunk per write, or keeps its size.
TEST_P(OvqStreaming, CentroidsMayChangeBetweenPieces) {
  for (const bool rope : {false, true}) {
    for (const int64_t centroids : {2, 90}) {
      OvqProblem problem({.tokens = 150, .options = {.chunk = 8, .centroids = 20, .rope = rope}});
      std::vector<OvqState> states = problem.states();
      run_forward(problem.inputs(0, 77), states);
      const int64_t size = states[0].size();
      const std::vector<OvqState> initial = states;
      problem.options.centroids = centroids;
      const OvqInputs inputs = problem.inputs(77, 73);
      const OvqForward forward = run_forward(inputs, states);
      ASSERT_TRUE(valid_assignments(inputs, initial, forward.assignments));
      const auto truth = expected_forward<double>(inputs, initial, forward.assignments);
      const auto plain = expected_forward<float>(inputs, initial, forward.assignments);
      EXPECT_TRUE(calibrated({.actual = forward.o.values(), .plain = plain.o, .truth = truth.o}));
      EXPECT_TRUE(optimal_choices(inputs, initial, truth));
      EXPECT_EQ(states[0].options().centroids, centroids);
      if (centroids < size) {
        EXPECT_EQ(states[0].size(), size);
      } else {
        EXPECT_GT(states[0].size(), size);
      }
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
