// The plain loops themselves, in double: gradients against central differences, and known results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ovq/ops/attention/reference.h"
#include "ovq/ops/ovq_attention/reference.h"
#include "tests/core/compare.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::reference {
namespace {

using test::close_to;
using test::option_variants;
using test::Random;

constexpr double kExact = 1e-12;

testing::AssertionResult close(const std::vector<double>& actual, const std::vector<double>& truth, double tolerance) {
  return close_to(std::span<const double>(actual), std::span<const double>(truth), tolerance);
}

Matrix<double> random_matrix(int64_t rows, int64_t columns, Random& random) {
  Matrix<double> matrix(rows, columns);
  for (double& element : matrix.data) element = random.normal();
  return matrix;
}

OvqHeadInputs<double> random_head(const OvqOptions& options, int64_t tokens, Random& random) {
  OvqHeadInputs<double> inputs;
  for (int g = 0; g < 2; ++g) inputs.q.push_back(random_matrix(tokens, 6, random));
  inputs.k = random_matrix(tokens, 6, random);
  inputs.v = random_matrix(tokens, 3, random);
  inputs.beta = {0.7, -0.4};
  inputs.options = options;
  inputs.head = 1;
  for (int64_t t = 0; options.weighted && t < tokens; ++t) inputs.weights.push_back(std::exp(random.normal()));
  return inputs;
}

OvqHeadInputs<double> piece(const OvqHeadInputs<double>& inputs, int64_t first, int64_t count) {
  OvqHeadInputs<double> part = inputs;
  for (Matrix<double>& q : part.q) q = q.slice(first, count);
  part.k = inputs.k.slice(first, count);
  part.v = inputs.v.slice(first, count);
  if (inputs.options.weighted) {
    part.weights = {inputs.weights.begin() + first, inputs.weights.begin() + first + count};
  }
  return part;
}

double inner(const Matrix<double>& a, const Matrix<double>& b) {
  return dot(a.data.data(), b.data.data(), a.data.size());
}

double inner(const std::vector<double>& a, const std::vector<double>& b) { return dot(a.data(), b.data(), a.size()); }

// d/dx of `objective` at each element of `x`, by differences of fourth order.
template <class Objective>
std::vector<double> central_differences(std::vector<double>& x, Objective&& objective) {
  constexpr double kStep = 1e-3;
  std::vector<double> gradient;
  for (double& element : x) {
    const double at = element;
    const auto value = [&](double offset) {
      element = at + offset;
      const double result = objective();
      element = at;
      return result;
    };
    gradient.push_back((8 * (value(kStep) - value(-kStep)) - (value(2 * kStep) - value(-2 * kStep))) / (12 * kStep));
  }
  return gradient;
}

TEST(ReferenceAttention, GradientsAreCentralDifferences) {
  for (int64_t window : {0, 4}) {
    Random random(5);
    AttentionHead<double> head{
        random_matrix(9, 4, random), random_matrix(12, 4, random), random_matrix(12, 3, random), 0.8, window, 2};
    const Matrix<double> d_o = random_matrix(9, 3, random);
    const auto objective = [&] { return inner(attention_forward(head).o, d_o); };
    const auto gradients = attention_backward(head, attention_forward(head), d_o);
    EXPECT_TRUE(close(gradients.d_q.data, central_differences(head.q.data, objective), 1e-8));
    EXPECT_TRUE(close(gradients.d_k.data, central_differences(head.k.data, objective), 1e-8));
    EXPECT_TRUE(close(gradients.d_v.data, central_differences(head.v.data, objective), 1e-8));
    std::vector<double> beta{head.beta};
    const auto of_beta = [&] {
      head.beta = beta[0];
      return objective();
    };
    EXPECT_TRUE(close({gradients.d_beta}, central_differences(beta, of_beta), 1e-8));
  }
}

void expect_gradients_match(const OvqOptions& options, int64_t earlier_tokens, int64_t tokens) {
  SCOPED_TRACE(testing::Message() << test::OvqCase{.options = options} << ", after " << earlier_tokens);
  Random random(11);
  const OvqHeadInputs<double> earlier = random_head(options, earlier_tokens, random);
  OvqHeadState<double> initial = ovq_attention_forward(earlier, empty_state<double>(6, 3)).state;
  OvqHeadInputs<double> inputs = random_head(options, tokens, random);
  const OvqHeadResult<double> forward = ovq_attention_forward(inputs, initial);
  const OvqHeadState<double>& state = forward.state;
  const std::vector<Matrix<double>> d_o{random_matrix(tokens, 3, random), random_matrix(tokens, 3, random)};
  const OvqHeadStateGradients<double> d_final{
      random_matrix(state.dictionary.size(), 6, random),
      random_matrix(state.dictionary.size(), 3, random),
      random_matrix(state.pending_keys.rows, 6, random),
      random_matrix(state.pending_keys.rows, 3, random),
      random_matrix(state.dictionary.size(), 1, random).data,
      random_matrix(state.pending_keys.rows, 1, random).data,
      options.value_norms ? random_matrix(state.dictionary.size(), 1, random).data : std::vector<double>()};

  const auto objective = [&] {
    const OvqHeadResult<double> result = ovq_attention_forward(inputs, initial, forward.assignments);
    return inner(result.o[0], d_o[0]) + inner(result.o[1], d_o[1]) + inner(result.state.dictionary.keys, d_final.keys) +
           inner(result.state.dictionary.values, d_final.values) +
           inner(result.state.pending_keys, d_final.pending_keys) +
           inner(result.state.pending_values, d_final.pending_values) +
           inner(result.state.dictionary.counts, d_final.counts) +
           inner(result.state.pending_weights, d_final.pending_weights) +
           inner(result.state.dictionary.shrinkage, d_final.shrinkage);
  };
  const OvqHeadGradients<double> gradients = ovq_attention_backward(inputs, initial, forward, d_o, d_final);
  const auto expect = [&](const std::string& name, const std::vector<double>& gradient, std::vector<double>& x) {
    EXPECT_TRUE(close(gradient, central_differences(x, objective), 1e-7)) << name;
  };
  for (int g = 0; g < 2; ++g) expect("q", gradients.d_q[g].data, inputs.q[g].data);
  expect("k", gradients.d_k.data, inputs.k.data);
  expect("v", gradients.d_v.data, inputs.v.data);
  expect("beta", gradients.d_beta, inputs.beta);
  expect("initial keys", gradients.d_initial.keys.data, initial.dictionary.keys.data);
  expect("initial values", gradients.d_initial.values.data, initial.dictionary.values.data);
  expect("initial pending keys", gradients.d_initial.pending_keys.data, initial.pending_keys.data);
  expect("initial pending values", gradients.d_initial.pending_values.data, initial.pending_values.data);
  if (options.value_norms) expect("initial shrinkage", gradients.d_initial.shrinkage, initial.dictionary.shrinkage);
  if (!options.weighted) return;
  expect("weights", gradients.d_weights, inputs.weights);
  expect("initial counts", gradients.d_initial.counts, initial.dictionary.counts);
  expect("initial pending weights", gradients.d_initial.pending_weights, initial.pending_weights);
}

TEST(ReferenceOvqAttention, GradientsAreCentralDifferences) {
  for (const OvqOptions& options : option_variants(4, 6)) {
    expect_gradients_match(options, 0, 18);
    expect_gradients_match(options, 14, 11);
    expect_gradients_match(options, 16, 1);
  }
}

TEST(ReferenceOvqAttention, CountsAreRepetitions) {
  Random random(2);
  const OvqHeadInputs<double> inputs = random_head({.chunk = 8, .centroids = 7}, 45, random);
  const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
  for (size_t c = 0; c < result.dictionaries.size(); ++c) {
    const OvqDictionary<double>& dictionary = result.dictionaries[c];
    const int64_t first = static_cast<int64_t>(c) * 8, count = std::min<int64_t>(8, 45 - first);
    AttentionHead<double> head{
        inputs.q[0].slice(first, count), Matrix<double>(0, 6), Matrix<double>(0, 3), inputs.beta[0], 0, first};
    for (int64_t n = 0; n < dictionary.size(); ++n) {
      for (int64_t i = 0; i < static_cast<int64_t>(dictionary.counts[n]); ++i) {
        head.k.append(dictionary.keys[n]);
        head.v.append(dictionary.values[n]);
      }
    }
    for (int64_t t = first; t < first + count; ++t) {
      head.k.append(inputs.k[t]);
      head.v.append(inputs.v[t]);
    }
    EXPECT_TRUE(close(result.o[0].slice(first, count).data, attention_forward(head).o.data, kExact));
  }
}

TEST(ReferenceOvqAttention, EveryKeyACentroidIsCausalAttention) {
  const int64_t tokens = 40;
  for (const OvqOptions& options :
       {OvqOptions{.chunk = 8, .centroids = 2 * tokens * tokens}, OvqOptions{.chunk = 8, .centroids = int64_t{1} << 60},
        OvqOptions{.chunk = 8, .centroids = tokens, .growth = Growth::all}, OvqOptions{.chunk = tokens, .centroids = 3},
        OvqOptions{.chunk = 100, .centroids = 3}}) {
    Random random(3);
    const OvqHeadInputs<double> inputs = random_head(options, tokens, random);
    const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
    for (int g = 0; g < 2; ++g) {
      const AttentionHeadResult<double> causal =
          attention_forward(AttentionHead<double>{inputs.q[g], inputs.k, inputs.v, inputs.beta[g]});
      EXPECT_TRUE(close(result.o[g].data, causal.o.data, kExact));
      EXPECT_TRUE(close(result.lse[g], causal.lse, kExact));
    }
  }
}

TEST(ReferenceOvqAttention, CentroidsAreMeansAndCountsAddUp) {
  for (const bool rope : {false, true}) {
    for (const bool weighted : {false, true}) {
      Random random(4);
      const OvqHeadInputs<double> inputs =
          random_head({.chunk = 8, .centroids = 7, .rope = rope, .weighted = weighted}, 69, random);
      const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
      const OvqDictionary<double>& dictionary = result.state.dictionary;
      Matrix<double> key_sums(dictionary.size(), 6), value_sums(dictionary.size(), 3);
      std::vector<double> counts(dictionary.size());
      int64_t written = 0;
      for (int64_t t = 0; t < 69; ++t) {
        const int32_t a = result.assignments[t];
        if (a == kUnassigned) continue;
        const int64_t n = a < 0 ? ~a : a;
        const double weight = weighted ? inputs.weights[t] : 1;
        add_scaled(key_sums[n], weight, inputs.k[t], 6);
        add_scaled(value_sums[n], weight, inputs.v[t], 3);
        counts[n] += weight;
        ++written;
      }
      EXPECT_EQ(written, rope ? 56 : 64);
      EXPECT_TRUE(close(dictionary.counts, counts, kExact));
      if (!weighted) {
        EXPECT_EQ(dictionary.counts, counts);
      }
      for (int64_t n = 0; n < dictionary.size(); ++n) {
        for (int64_t i = 0; i < 6; ++i) key_sums[n][i] /= counts[n];
        for (int64_t i = 0; i < 3; ++i) value_sums[n][i] /= counts[n];
      }
      EXPECT_TRUE(close(dictionary.keys.data, key_sums.data, kExact));
      EXPECT_TRUE(close(dictionary.values.data, value_sums.data, kExact));
    }
  }
}

// Everything must be equal, including the assignments. Keys that are not of unit norm have similarities above 1, which
// all score 0.
TEST(ReferenceWeights, OnesChangeNothing) {
  for (const OvqOptions& options : option_variants(8, 10)) {
    if (options.rate || options.weighted) continue;
    for (const double scale : {0.1, 1.0, 3.0}) {
      Random random(12);
      OvqHeadInputs<double> inputs = random_head(options, 61, random);
      for (double& element : inputs.k.data) element *= scale;
      const OvqHeadResult<double> without = ovq_attention_forward(inputs, empty_state<double>(6, 3));
      const std::vector<Matrix<double>> d_o{random_matrix(61, 3, random), random_matrix(61, 3, random)};
      const auto d_without = ovq_attention_backward(inputs, empty_state<double>(6, 3), without, d_o);
      inputs.options.weighted = true;
      inputs.weights.assign(61, 1.0);
      const OvqHeadResult<double> with = ovq_attention_forward(inputs, empty_state<double>(6, 3));
      const auto d_with = ovq_attention_backward(inputs, empty_state<double>(6, 3), with, d_o);
      EXPECT_EQ(with.assignments, without.assignments);
      EXPECT_EQ(with.o[0].data, without.o[0].data);
      EXPECT_EQ(with.o[1].data, without.o[1].data);
      EXPECT_EQ(with.state.dictionary.keys.data, without.state.dictionary.keys.data);
      EXPECT_EQ(with.state.dictionary.counts, without.state.dictionary.counts);
      EXPECT_EQ(d_with.d_k.data, d_without.d_k.data);
      EXPECT_EQ(d_with.d_v.data, d_without.d_v.data);
      EXPECT_EQ(d_with.d_beta, d_without.d_beta);
    }
  }
}

// Tokens `first` ... of a head, as a chunk to write.
OvqChunk<double> chunk_of(const OvqHeadInputs<double>& inputs, int64_t first, int64_t count) {
  return {inputs.k.slice(first, count),
          inputs.v.slice(first, count),
          {inputs.weights.begin() + first, inputs.weights.begin() + first + count},
          0,
          0};
}

// By hand: the values (3, 0) and (0, 4) merge. Their mean (1.5, 2) has norm 2.5 and is rescaled to 3.5. With the next
// token, (0, 5), the mean is (1, 3) and the norm 4.
TEST(ReferenceValueNorms, MergedValuesAreAsLongAsTheirTokens) {
  const OvqOptions options{.chunk = 2, .value_norms = true};
  OvqDictionary<double> dictionary = empty_state<double>(1, 2).dictionary;
  const auto write = [&](std::vector<double> values, const std::vector<int32_t>& assignments) {
    OvqChunk<double> chunk{Matrix<double>(2, 1), Matrix<double>(2, 2), {1.0, 1.0}, 0, 0};
    chunk.values.data = std::move(values);
    write_chunk(dictionary, chunk, assignments, options);
  };
  write({3, 0, 0, 4}, {~0, 0});
  EXPECT_TRUE(close(dictionary.values.data, {2.1, 2.8}, kExact));
  EXPECT_TRUE(close(dictionary.shrinkage, {2.5 / 3.5}, kExact));
  write({0, 5, 7, 7}, {0, ~1});
  const double factor = 4 / std::sqrt(10.0);
  EXPECT_TRUE(close(dictionary.values.data, {factor, 3 * factor, 7, 7}, kExact));
  EXPECT_TRUE(close(dictionary.shrinkage, {1 / factor, 1.0}, kExact));
}

// A weight of 2 equals the token twice in the chunk, for members and for founders.
TEST(ReferenceWeights, TwoIsTheTokenTwice) {
  for (const bool normalize : {false, true}) {
    for (const int64_t doubled : {1, 3}) {
      Random random(13);
      const OvqOptions options{.chunk = 6, .normalize = normalize, .weighted = true, .value_norms = normalize};
      OvqHeadInputs<double> inputs = random_head(options, 12, random);
      inputs.weights.assign(12, 1.0);
      OvqDictionary<double> once = empty_state<double>(6, 3).dictionary;
      write_chunk(once, chunk_of(inputs, 0, 6), {~0, ~1, 0, ~2, 0, 1}, options);
      OvqDictionary<double> twice = once;
      const std::vector<int32_t> assignments{2, 0, 0, ~3, 3, 1};

      inputs.weights[6 + doubled] = 2.0;
      write_chunk(once, chunk_of(inputs, 6, 6), assignments, options);
      OvqHeadInputs<double> longer = inputs;
      longer.weights.assign(13, 1.0);
      longer.k.append(inputs.k[6 + doubled]);
      longer.v.append(inputs.v[6 + doubled]);
      std::vector<int32_t> more = assignments;
      more.push_back(assignments[doubled] < 0 ? ~assignments[doubled] : assignments[doubled]);
      write_chunk(twice, chunk_of(longer, 6, 7), more, options);

      EXPECT_TRUE(close(once.keys.data, twice.keys.data, kExact));
      EXPECT_TRUE(close(once.values.data, twice.values.data, kExact));
      EXPECT_EQ(once.counts, twice.counts);
    }
  }
}

// In the window a weight of 2 equals the key twice: one chunk is attention over the tokens with repetitions.
TEST(ReferenceWeights, WindowReadsAWeightAsRepetitions) {
  Random random(14);
  OvqHeadInputs<double> inputs = random_head({.chunk = 100, .weighted = true}, 10, random);
  for (int64_t t = 0; t < 10; ++t) inputs.weights[t] = static_cast<double>(1 + t % 3);
  const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
  for (int64_t t = 0; t < 10; ++t) {
    AttentionHead<double> head{inputs.q[0].slice(t, 1), Matrix<double>(0, 6), Matrix<double>(0, 3), inputs.beta[0]};
    for (int64_t j = 0; j <= t; ++j) {
      for (int64_t i = 0; i < 1 + j % 3; ++i) {
        head.k.append(inputs.k[j]);
        head.v.append(inputs.v[j]);
      }
    }
    head.query_offset = head.k.rows - 1;
    EXPECT_TRUE(close(result.o[0].slice(t, 1).data, attention_forward(head).o.data, kExact));
  }
}

// A token whose weight goes to 0 has no effect: its key and value change no later output, and it founds no centroid as
// long as there are others.
TEST(ReferenceWeights, ZeroRemovesTheToken) {
  for (const bool normalize : {false, true}) {
    for (const int64_t removed : {0, 3, 11, 20}) {
      Random random(15);
      OvqHeadInputs<double> inputs =
          random_head({.chunk = 8, .centroids = 7, .normalize = normalize, .weighted = true}, 45, random);
      inputs.weights[removed] = 1e-18;
      const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
      EXPECT_GE(result.assignments[removed], 0);
      for (double& element : std::span(inputs.k[removed], 6)) element += 0.5;
      for (double& element : std::span(inputs.v[removed], 3)) element = 3.0;
      const OvqHeadResult<double> other = ovq_attention_forward(inputs, empty_state<double>(6, 3), result.assignments);
      // The token itself, alone at the start, reads only itself.
      const int64_t from = removed == 0 ? 1 : 0;
      EXPECT_TRUE(close(other.o[0].slice(from, 45 - from).data, result.o[0].slice(from, 45 - from).data, kExact));
      EXPECT_TRUE(close(other.state.dictionary.keys.data, result.state.dictionary.keys.data, kExact));
      EXPECT_TRUE(close(other.state.dictionary.values.data, result.state.dictionary.values.data, kExact));
    }
  }
}

// Similarities 0.5, 0.2, 0.2, 0.9, 1.5, 2, to one centroid: scores by hand, ties by similarity and then by position.
TEST(ReferenceWeights, FoundersHaveTheLargestScore) {
  OvqDictionary<double> dictionary{Matrix<double>(1, 1), Matrix<double>(1, 1), {1.0}};
  dictionary.keys[0][0] = 1.0;
  OvqChunk<double> chunk{Matrix<double>(6, 1), Matrix<double>(6, 1), {1.0, 0.625, 0.625, 1.0, 1.0, 7.0}, 1, 0};
  chunk.keys.data = {0.5, 0.2, 0.2, 0.9, 1.5, 2.0};
  const auto founders = [&](int64_t centroids) {
    return choose_founders(dictionary, chunk,
                           {.chunk = 6, .centroids = 1 + centroids, .growth = Growth::all, .weighted = true});
  };
  const std::vector<int64_t> order{1, 2, 0, 3, 4, 5};  // 0.5, 0.5 and 0.5 with similarity 0.2, 0.2, 0.5; 0.1; 0, 0
  for (int64_t count = 1; count <= 6; ++count) {
    std::vector<int64_t> expected(order.begin(), order.begin() + count);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(founders(count), expected) << count;
  }
}

TEST(ReferenceWeights, FoundingChunkStartsWithTheHeaviest) {
  Matrix<double> keys(4, 1);
  keys.data = {1.0, 0.5, -1.0, -0.5};
  EXPECT_EQ(farthest_first(keys, {0.5, 1.0, 0.25, 1.0}, 1), (std::vector<int64_t>{1}));
  EXPECT_EQ(farthest_first(keys, {0.5, 1.0, 0.25, 1.0}, 2), (std::vector<int64_t>{1, 3}));  // 0.25, -, 0.375, 1.25
  EXPECT_EQ(farthest_first(keys, {0.5, 1.0, 0.9, 0.25}, 2), (std::vector<int64_t>{1, 2}));  // 0.25, -, 1.35, 0.3125
  EXPECT_EQ(farthest_first(keys, {0.5, 0.5, 0.5, 0.5}, 2), (std::vector<int64_t>{0, 2}));
}

TEST(ReferenceOvqAttention, PiecesAreOnePass) {
  for (const OvqOptions& options : option_variants(8, 10)) {
    Random random(6);
    const OvqHeadInputs<double> inputs = random_head(options, 45, random);
    const OvqHeadResult<double> whole = ovq_attention_forward(inputs, empty_state<double>(6, 3));
    for (const int64_t step : {1, 3, 8, 20}) {
      OvqHeadState<double> state = empty_state<double>(6, 3);
      for (int64_t first = 0; first < 45; first += step) {
        const int64_t count = std::min(step, 45 - first);
        const OvqHeadResult<double> part = ovq_attention_forward(piece(inputs, first, count), state);
        for (int g = 0; g < 2; ++g) {
          EXPECT_TRUE(close(part.o[g].data, whole.o[g].slice(first, count).data, kExact));
        }
        state = part.state;
      }
      EXPECT_TRUE(close(state.dictionary.keys.data, whole.state.dictionary.keys.data, kExact));
      EXPECT_TRUE(close(state.dictionary.values.data, whole.state.dictionary.values.data, kExact));
      EXPECT_EQ(state.dictionary.counts, whole.state.dictionary.counts);
      EXPECT_EQ(state.pending_keys.data, whole.state.pending_keys.data);
      EXPECT_EQ(state.pending_values.data, whole.state.pending_values.data);
      EXPECT_EQ(state.pending_weights, whole.state.pending_weights);
      EXPECT_EQ(state.position, 45);
    }
  }
}

TEST(ReferenceOvqAttention, FutureNeverChangesThePast) {
  for (const OvqOptions& options : option_variants(8, 10)) {
    Random random(7);
    OvqHeadInputs<double> inputs = random_head(options, 45, random);
    const OvqHeadResult<double> clean = ovq_attention_forward(inputs, empty_state<double>(6, 3));
    for (int64_t t = 30; t < 45; ++t) {
      std::fill_n(inputs.k[t], 6, std::numeric_limits<double>::quiet_NaN());
      std::fill_n(inputs.v[t], 3, std::numeric_limits<double>::infinity());
      if (options.weighted) inputs.weights[t] = 1e30;
    }
    const OvqHeadResult<double> poisoned = ovq_attention_forward(inputs, empty_state<double>(6, 3));
    EXPECT_EQ(poisoned.o[0].slice(0, 30).data, clean.o[0].slice(0, 30).data);
  }
}

// With rope only distances inside the window count: the window's own part is attention on rotated rows.
TEST(ReferenceOvqAttention, RopeWithoutDictionaryIsRotaryAttention) {
  Random random(8);
  const OvqHeadInputs<double> inputs = random_head({.chunk = 20, .centroids = 5, .rope = true}, 40, random);
  const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
  EXPECT_EQ(result.dictionaries.back().size(), 0);
  AttentionHead<double> head{inputs.q[0], inputs.k, inputs.v, inputs.beta[0]};
  for (int64_t t = 0; t < 40; ++t) {
    const std::vector<double> q = rotate(head.q[t], 6, static_cast<double>(t) + 100, 10000.0);
    const std::vector<double> k = rotate(head.k[t], 6, static_cast<double>(t) + 100, 10000.0);
    std::copy(q.begin(), q.end(), head.q[t]);
    std::copy(k.begin(), k.end(), head.k[t]);
  }
  EXPECT_TRUE(close(result.o[0].data, attention_forward(head).o.data, kExact));
}

TEST(ReferenceOvqAttention, DictionaryLagsOneChunkWithRope) {
  Random random(9);
  const OvqHeadInputs<double> inputs = random_head({.chunk = 8, .centroids = 100, .rope = true}, 50, random);
  const OvqHeadResult<double> result = ovq_attention_forward(inputs, empty_state<double>(6, 3));
  for (int64_t c = 0; c < 7; ++c) {
    EXPECT_EQ(result.dictionaries[c].size(), c < 2 ? 0 : target_centroids(inputs.options, (c - 1) * 8))
        << "chunk " << c;
  }
  EXPECT_EQ(result.state.pending_keys.rows, 10);
}

TEST(ReferenceDictionary, SizesAreThoseOfTheKernels) {
  for (const Growth growth : {Growth::plateau, Growth::linear, Growth::all, Growth::square_root}) {
    for (const int64_t centroids : {int64_t{1}, int64_t{7}, int64_t{2048}, int64_t{1} << 40}) {
      for (const int64_t tokens : {int64_t{1}, int64_t{2}, int64_t{128}, int64_t{4095}, int64_t{1} << 41}) {
        const OvqOptions options{.centroids = centroids, .growth = growth, .total_tokens = 5000};
        EXPECT_EQ(target_size(options, tokens), target_centroids(options, tokens));
      }
    }
  }
}

TEST(ReferenceDictionary, SquareRootLeavesSlotsForLater) {
  const auto target = [](int64_t tokens, Growth growth) {
    return target_centroids({.centroids = 100, .growth = growth}, tokens);
  };
  EXPECT_EQ(target(1, Growth::square_root), 1);
  EXPECT_EQ(target(150, Growth::square_root), 50);     // 100 (1 - 1 / 2)
  EXPECT_EQ(target(400, Growth::square_root), 67);     // 100 (1 - 1 / 3)
  EXPECT_EQ(target(495000, Growth::square_root), 99);  // 100 (1 - 1 / 99.5)
  EXPECT_EQ(target(495000, Growth::plateau), 100);
}

TEST(ReferenceDictionary, PlateauRoundsToNearest) {
  const auto target = [](int64_t tokens, int64_t centroids) {
    return target_centroids({.centroids = centroids}, tokens);
  };
  EXPECT_EQ(target(128, 2048), 120);   // 120.47
  EXPECT_EQ(target(8, 12), 5);         // 4.8
  EXPECT_EQ(target(1, 1), 1);          // 0.5
  EXPECT_EQ(target(100, 20000), 100);  // 99.5025
  EXPECT_EQ(target(16384, 2048), 1820);
}

}  // namespace
}  // namespace ovq::kernels::reference
