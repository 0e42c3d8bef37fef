// OVQ-attention problems: random inputs, the fast path on them, and the plain loops over their sequences and heads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/reference.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"

namespace ovq::kernels::test {

enum class Keys {
  unit,      // random, of unit norm
  gaussian,  // random
  repeated,  // random, of unit norm, with only three distinct ones
};

// The values that the sweeps use.
inline constexpr int64_t kChunks[] = {1, 7, 16, 32, 128};
inline constexpr int64_t kCentroids[] = {1, 5, 24, 300};

struct OvqCase {
  int64_t batch = 1, tokens = 33, query_heads = 1, kv_heads = 1, key_dim = 16, value_dim = 16;
  OvqOptions options;
  Layout layout = Layout::dense;
  Keys keys = Keys::unit;
  std::optional<float> beta;        // absent: around sqrt(dk), different for each head
  std::vector<int64_t> cu_seqlens;  // packed if any
  uint64_t seed = 1;
  StateDtype dtype = StateDtype::float32;  // of states
};

inline std::ostream& operator<<(std::ostream& out, const OvqCase& c) {
  out << "batch " << c.batch << ", tokens " << c.tokens << ", heads " << c.query_heads << "/" << c.kv_heads << ", dims "
      << c.key_dim << "/" << c.value_dim << ", chunk " << c.options.chunk << ", centroids " << c.options.centroids
      << ", growth " << static_cast<int>(c.options.growth) << ", random "
      << (c.options.new_centroids == NewCentroids::random) << ", rate " << c.options.rate.value_or(0) << ", normalize "
      << c.options.normalize << ", value norms " << c.options.value_norms << ", rope " << c.options.rope
      << ", weighted " << c.options.weighted << ", layout " << static_cast<int>(c.layout) << ", keys "
      << static_cast<int>(c.keys) << ", " << name_of(c.dtype);
  for (int64_t offset : c.cu_seqlens) out << ", " << offset;
  return out;
}

struct OvqProblem {
  explicit OvqProblem(const OvqCase& c) : options(c.options), cu_seqlens(c.cu_seqlens), dtype(c.dtype) {
    Random random(c.seed);
    q = unit_tensor({c.batch, c.tokens, c.query_heads, c.key_dim}, c.layout, random);
    k = random_tensor({c.batch, c.tokens, c.kv_heads, c.key_dim}, c.layout, random);
    v = random_tensor({c.batch, c.tokens, c.kv_heads, c.value_dim}, c.layout, random);
    if (c.keys != Keys::gaussian) k.normalize_rows();
    if (c.keys == Keys::repeated) repeat_keys(random);
    for (int64_t h = 0; h < c.query_heads; ++h) {
      const double scale = std::sqrt(static_cast<double>(c.key_dim)) * (0.5 + static_cast<double>(h % 3));
      beta.push_back(c.beta.value_or(static_cast<float>(scale)));
    }
    if (c.options.weighted) make_weights(c, random);
  }

  OvqInputs inputs() const { return inputs(0, q.view().time); }
  OvqInputs inputs(int64_t first, int64_t count) const {
    return {.q = q.slice(first, count),
            .k = k.slice(first, count),
            .v = v.slice(first, count),
            .beta = beta,
            .weights = options.weighted ? weights.slice(first, count) : View<float>{},
            .options = options,
            .cu_seqlens = cu_seqlens};
  }

  OvqShape state_shape() const {
    return {cu_seqlens.empty() ? q.view().batch : 1, k.view().heads, k.view().dim, v.view().dim};
  }
  // Empty states: one for the batch, or one per packed sequence.
  std::vector<OvqState> states() const {
    const size_t count = cu_seqlens.empty() ? 1 : cu_seqlens.size() - 1;
    return std::vector<OvqState>(count, OvqState(state_shape(), options, dtype));
  }

  OvqOptions options;
  Tensor q, k, v;
  Tensor weights;  // [B, T, Hkv, 1]; with options.weighted
  std::vector<float> beta;
  std::vector<int64_t> cu_seqlens;
  StateDtype dtype;

 private:
  // Mostly up to 1, as from a gate; many of them are small.
  void make_weights(const OvqCase& c, Random& random) {
    weights = Tensor({c.batch, c.tokens, c.kv_heads, 1}, c.layout);
    weights.each_row([&](float* weight) { *weight = std::exp(random.normal() - 1.5f); });
  }
  void repeat_keys(Random& random) {
    const View<float> view = k.view();
    for (int64_t b = 0; b < view.batch; ++b) {
      for (int64_t t = 3; t < view.time; ++t) {
        for (int64_t h = 0; h < view.heads; ++h)
          std::copy_n(view.row(b, random.below(3), h), view.dim, view.row(b, t, h));
      }
    }
  }
};

struct OvqForward {
  Tensor o, lse;
  std::vector<int32_t> assignments;
};

inline OvqForward run_forward(const OvqInputs& inputs, std::span<OvqState> states = {},
                              std::span<const int32_t> forced = {}, Layout layout = Layout::dense) {
  const auto& [q, k, v, beta, weights, options, cu_seqlens] = inputs;
  OvqForward forward{Tensor({q.batch, q.time, q.heads, v.dim}, layout), Tensor({q.batch, q.time, q.heads, 1}, layout),
                     std::vector<int32_t>(ovq_assignment_count(inputs, states), 12345)};
  ovq_attention_forward(inputs, {forward.o.view(), forward.lse.view(), forward.assignments}, states, forced);
  EXPECT_TRUE(forward.o.fences_intact());
  EXPECT_TRUE(forward.lse.fences_intact());
  return forward;
}

// One sequence of a batch or of packed sequences.
struct Sequence {
  int64_t batch, first, tokens;
  const OvqState* state;  // nullptr: none
  int64_t state_batch;
  int64_t assignments_first;  // index of its first element
  int64_t pending() const { return state ? state->pending() : 0; }
};

inline std::vector<Sequence> sequences_of(const OvqInputs& inputs, std::span<const OvqState> states) {
  std::vector<Sequence> sequences;
  const bool packed = !inputs.cu_seqlens.empty();
  const int64_t count = packed ? static_cast<int64_t>(inputs.cu_seqlens.size()) - 1 : inputs.q.batch;
  int64_t assignments_first = 0;
  for (int64_t s = 0; s < count; ++s) {
    Sequence sequence{packed ? 0 : s, 0, inputs.q.time, nullptr, packed ? 0 : s, assignments_first};
    if (packed) {
      sequence.first = inputs.cu_seqlens[s];
      sequence.tokens = inputs.cu_seqlens[s + 1] - inputs.cu_seqlens[s];
    }
    if (!states.empty()) sequence.state = &states[packed ? s : 0];
    assignments_first += (sequence.pending() + sequence.tokens) * inputs.k.heads;
    sequences.push_back(sequence);
  }
  return sequences;
}

// The results of the plain loops, dense: [B, T, H, D], and those of each kv head of each sequence.
template <class Scalar>
struct OvqExpected {
  std::vector<Scalar> o, lse;
  std::vector<int32_t> assignments;
  std::vector<reference::OvqHeadState<Scalar>> initial;   // [sequence][kv head]
  std::vector<reference::OvqHeadResult<Scalar>> results;  // [sequence][kv head]
};

template <class Scalar>
OvqExpected<Scalar> expected_forward(const OvqInputs& inputs, std::span<const OvqState> states = {},
                                     std::span<const int32_t> forced = {}) {
  const int64_t kv_heads = inputs.k.heads, group = inputs.q.heads / kv_heads, dim = inputs.v.dim;
  const std::vector<Sequence> sequences = sequences_of(inputs, states);
  OvqExpected<Scalar> expected;
  expected.o.resize(inputs.q.batch * inputs.q.time * inputs.q.heads * dim);
  expected.lse.resize(inputs.q.batch * inputs.q.time * inputs.q.heads);
  for (const Sequence& sequence : sequences) {
    const int64_t length = sequence.pending() + sequence.tokens;
    expected.assignments.resize(expected.assignments.size() + length * kv_heads);
    for (int64_t h = 0; h < kv_heads; ++h) {
      std::vector<int32_t> given;
      for (int64_t t = 0; t < length && !forced.empty(); ++t) {
        given.push_back(forced[sequence.assignments_first + t * kv_heads + h]);
      }
      expected.initial.push_back(sequence.state
                                     ? reference::load_state<Scalar>(*sequence.state, sequence.state_batch, h)
                                     : reference::empty_state<Scalar>(inputs.k.dim, dim));
      expected.results.push_back(reference::ovq_attention_forward(
          reference::load_head<Scalar>(inputs, sequence.batch, h, sequence.first, sequence.tokens),
          expected.initial.back(), given));
      const reference::OvqHeadResult<Scalar>& result = expected.results.back();
      for (int64_t t = 0; t < length; ++t) {
        expected.assignments[sequence.assignments_first + t * kv_heads + h] = result.assignments[t];
      }
      for (int64_t g = 0; g < group; ++g) {
        for (int64_t t = 0; t < sequence.tokens; ++t) {
          const int64_t row = (sequence.batch * inputs.q.time + sequence.first + t) * inputs.q.heads + h * group + g;
          std::copy_n(result.o[g][t], dim, expected.o.begin() + row * dim);
          expected.lse[row] = result.lse[g][t];
        }
      }
    }
  }
  return expected;
}

// The content of a state, or its gradients: [B, n, Hkv, dk], [B, n, Hkv, dv], [B, pending, Hkv, dk], [B, pending, Hkv,
// dv]; with weights also [B, n, Hkv] and [B, pending, Hkv], otherwise empty; with value_norms [B, n, Hkv], otherwise
// empty.
template <class Scalar>
struct StateValues {
  std::vector<Scalar> keys, values, pending_keys, pending_values, counts, pending_weights, shrinkage;
};

inline StateValues<float> values_of(const OvqState& stored) {
  const OvqState state = stored.to(StateDtype::float32);
  StateValues<float> values{dense(state.keys()), dense(state.values()), dense(state.pending_keys()),
                            dense(state.pending_values())};
  if (state.options().value_norms) values.shrinkage = dense(state.shrinkage());
  if (!state.options().weighted) return values;
  values.counts = dense(state.real_counts());
  values.pending_weights = dense(state.pending_weights());
  return values;
}

// From the kv heads [sequence][kv head] of the sequences of one state.
template <class Scalar>
std::vector<Scalar> interleave(const std::vector<const reference::Matrix<Scalar>*>& parts, int64_t kv_heads) {
  std::vector<Scalar> values;
  for (size_t b = 0; b < parts.size(); b += kv_heads) {
    for (int64_t row = 0; row < parts[b]->rows; ++row) {
      for (int64_t h = 0; h < kv_heads; ++h) {
        const reference::Matrix<Scalar>& part = *parts[b + h];
        values.insert(values.end(), part[row], part[row] + part.columns);
      }
    }
  }
  return values;
}

template <class Scalar>
reference::Matrix<Scalar> column(const std::vector<Scalar>& values) {
  reference::Matrix<Scalar> matrix(static_cast<int64_t>(values.size()), 1);
  matrix.data = values;
  return matrix;
}

// One for the batch, or one per packed sequence. `of` gives the four matrices and the three vectors, counts, weights
// and shrinkage, of the i-th (sequence, kv head).
template <class Scalar, class Of>
std::vector<StateValues<Scalar>> state_values(const OvqInputs& inputs, Of&& of) {
  const int64_t kv_heads = inputs.k.heads;
  const int64_t states = inputs.cu_seqlens.empty() ? 1 : static_cast<int64_t>(inputs.cu_seqlens.size()) - 1;
  const int64_t per_state = (inputs.cu_seqlens.empty() ? inputs.q.batch : 1) * kv_heads;
  std::vector<StateValues<Scalar>> result;
  for (int64_t s = 0; s < states; ++s) {
    std::vector<const reference::Matrix<Scalar>*> parts[7];
    std::vector<reference::Matrix<Scalar>> columns;
    columns.reserve(3 * per_state);
    for (int64_t i = 0; i < per_state; ++i) {
      const auto [matrices, vectors] = of(s * per_state + i);
      for (int part = 0; part < 4; ++part) parts[part].push_back(matrices[part]);
      for (int part = 0; part < 3; ++part) parts[4 + part].push_back(&columns.emplace_back(column(*vectors[part])));
    }
    result.push_back({interleave(parts[0], kv_heads), interleave(parts[1], kv_heads), interleave(parts[2], kv_heads),
                      interleave(parts[3], kv_heads)});
    if (inputs.options.value_norms) result.back().shrinkage = interleave(parts[6], kv_heads);
    if (!inputs.options.weighted) continue;
    result.back().counts = interleave(parts[4], kv_heads);
    result.back().pending_weights = interleave(parts[5], kv_heads);
  }
  return result;
}

template <class Scalar>
std::vector<StateValues<Scalar>> final_values(const OvqInputs& inputs, const OvqExpected<Scalar>& expected) {
  return state_values<Scalar>(inputs, [&](int64_t i) {
    const reference::OvqHeadState<Scalar>& state = expected.results[i].state;
    return std::pair{
        std::array{&state.dictionary.keys, &state.dictionary.values, &state.pending_keys, &state.pending_values},
        std::array{&state.dictionary.counts, &state.pending_weights, &state.dictionary.shrinkage}};
  });
}

inline void expect_same_values(const StateValues<float>& a, const StateValues<float>& e) {
  EXPECT_TRUE(same_bits(a.keys, e.keys));
  EXPECT_TRUE(same_bits(a.values, e.values));
  EXPECT_TRUE(same_bits(a.pending_keys, e.pending_keys));
  EXPECT_TRUE(same_bits(a.pending_values, e.pending_values));
  EXPECT_TRUE(same_bits(a.counts, e.counts));
  EXPECT_TRUE(same_bits(a.pending_weights, e.pending_weights));
  EXPECT_TRUE(same_bits(a.shrinkage, e.shrinkage));
}

inline void expect_same_state(const OvqState& actual, const OvqState& expected) {
  EXPECT_EQ(actual.position(), expected.position());
  ASSERT_EQ(actual.dtype(), expected.dtype());
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(actual.pending(), expected.pending());
  expect_same_values(values_of(actual), values_of(expected));
  for (int64_t b = 0; b < expected.shape().batch; ++b) {
    for (int64_t h = 0; h < expected.shape().kv_heads; ++h) {
      EXPECT_TRUE(same_bits(actual.counts(b, h), expected.counts(b, h))) << "batch " << b << ", head " << h;
    }
  }
}

inline std::string bytes_of(const OvqState& state) {
  std::ostringstream out;
  state.write(out);
  return out.str();
}

// The variants of the op: every option at least once, alone and in combination. A constant rate is small enough that a
// chunk moves no row far beyond its members.
inline std::vector<OvqOptions> option_variants(int64_t chunk, int64_t centroids) {
  const OvqOptions base{.chunk = chunk, .centroids = centroids};
  std::vector<OvqOptions> variants(18, base);
  variants[1].growth = Growth::linear;
  variants[1].total_tokens = 90;
  variants[2].growth = Growth::all;
  variants[3].new_centroids = NewCentroids::random;
  variants[3].seed = 7;
  variants[4].rate = 0.025f;
  variants[5].normalize = true;
  variants[6].rope = true;
  variants[7].rope = true;
  variants[7].rope_base = 500.0f;
  variants[7].normalize = true;
  variants[7].growth = Growth::all;
  variants[8].rate = std::min(0.3f, 2.0f / static_cast<float>(chunk));
  variants[8].normalize = true;
  variants[8].new_centroids = NewCentroids::random;
  variants[9].rope = true;
  variants[9].rate = std::min(0.1f, 1.0f / static_cast<float>(chunk));
  variants[9].new_centroids = NewCentroids::random;
  variants[9].growth = Growth::linear;
  variants[9].total_tokens = 50;
  for (size_t i = 10; i < 15; ++i) variants[i].weighted = true;
  variants[11].normalize = true;
  variants[12].rope = true;
  variants[13].new_centroids = NewCentroids::random;
  variants[13].growth = Growth::linear;
  variants[13].total_tokens = 90;
  variants[14].rope = true;
  variants[14].normalize = true;
  variants[14].growth = Growth::all;
  variants[15].value_norms = true;
  variants[16].value_norms = true;
  variants[16].rope = true;
  variants[16].normalize = true;
  variants[17].value_norms = true;
  variants[17].weighted = true;
  variants[17].normalize = true;
  variants[17].growth = Growth::square_root;
  return variants;
}

inline constexpr StateDtype kStateDtypes[] = {StateDtype::float32, StateDtype::bfloat16};

struct HeadCounts {
  int64_t batch, query_heads, kv_heads;
};

// All pairs of time, key dim, value dim and chunk; heads, layout, keys, options and centroids alternate.
inline std::vector<OvqCase> pairs_of_sizes(std::span<const HeadCounts, 5> heads) {
  std::vector<OvqCase> cases;
  for (int64_t i = 0; i < 14; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      const auto [batch, query_heads, kv_heads] = heads[(i + 2 * j) % 5];
      OvqOptions options = option_variants(kChunks[(i + j) % 5], kCentroids[(i + 3 * j) % 4])[(3 * i + j) % 18];
      if (kDims[j] % 2 == 1) options.rope = false;
      if (kDims[j] == 1) options.normalize = false;
      cases.push_back({.batch = batch,
                       .tokens = kTimes[i],
                       .query_heads = query_heads,
                       .kv_heads = kv_heads,
                       .key_dim = kDims[j],
                       .value_dim = kDims[(i + 2 * j) % 7],
                       .options = options,
                       .layout = kLayouts[(i + j) % 3],
                       .keys = (i + j) % 4 == 0 ? Keys::gaussian : Keys::unit,
                       .beta = {},
                       .cu_seqlens = {},
                       .seed = static_cast<uint64_t>(i * 7 + j)});
    }
  }
  return cases;
}

}  // namespace ovq::kernels::test
