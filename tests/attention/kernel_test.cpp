// Causal attention, forward and backward, against the plain loops.
#include "ovq/ops/attention/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/attention/reference.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"

namespace ovq::kernels::test {
namespace {

struct AttentionCase {
  int64_t batch = 1, queries = 33;
  std::optional<int64_t> keys;  // absent: as many as queries
  int64_t query_heads = 1, kv_heads = 1, key_dim = 16, value_dim = 16;
  int64_t window = 0, query_offset = 0;
  Layout layout = Layout::dense;
  std::optional<float> beta;  // absent: around sqrt(dk), different for each head
  std::vector<int64_t> cu_seqlens;
  uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  out << "batch " << c.batch << ", queries " << c.queries << ", keys " << c.keys.value_or(c.queries) << ", heads "
      << c.query_heads << "/" << c.kv_heads << ", dims " << c.key_dim << "/" << c.value_dim << ", window " << c.window
      << ", offset " << c.query_offset << ", layout " << static_cast<int>(c.layout);
  for (int64_t offset : c.cu_seqlens) out << ", " << offset;
  return out;
}

struct AttentionProblem {
  explicit AttentionProblem(const AttentionCase& c) : c(c) {
    Random random(c.seed);
    const int64_t keys = c.keys.value_or(c.queries);
    q = unit_tensor({c.batch, c.queries, c.query_heads, c.key_dim}, c.layout, random);
    k = unit_tensor({c.batch, keys, c.kv_heads, c.key_dim}, c.layout, random);
    v = random_tensor({c.batch, keys, c.kv_heads, c.value_dim}, c.layout, random);
    d_o = random_tensor({c.batch, c.queries, c.query_heads, c.value_dim}, c.layout, random);
    for (int64_t h = 0; h < c.query_heads; ++h) {
      const double scale = std::sqrt(static_cast<double>(c.key_dim)) * (0.5 + static_cast<double>(h % 3));
      beta.push_back(c.beta.value_or(static_cast<float>(scale)));
    }
  }

  AttentionInputs inputs() const {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .beta = beta,
            .window = c.window,
            .query_offset = c.query_offset,
            .cu_seqlens = c.cu_seqlens};
  }

  AttentionCase c;
  Tensor q, k, v, d_o;
  std::vector<float> beta;
};

// Outputs and gradients, dense.
template <class Scalar>
struct AttentionValues {
  std::vector<Scalar> o, lse, d_q, d_k, d_v, d_beta;
};

AttentionValues<float> run(const AttentionProblem& problem) {
  const AttentionCase& c = problem.c;
  const int64_t keys = problem.k.view().time;
  const Tensor o({c.batch, c.queries, c.query_heads, c.value_dim}, c.layout);
  const Tensor lse({c.batch, c.queries, c.query_heads, 1}, c.layout);
  const Tensor d_q({c.batch, c.queries, c.query_heads, c.key_dim}, c.layout);
  const Tensor d_k({c.batch, keys, c.kv_heads, c.key_dim}, c.layout);
  const Tensor d_v({c.batch, keys, c.kv_heads, c.value_dim}, c.layout);
  std::vector<float> d_beta(c.query_heads, std::numeric_limits<float>::quiet_NaN());
  attention_forward(problem.inputs(), {o.view(), lse.view()});
  attention_backward(problem.inputs(), {o.view(), lse.view()}, problem.d_o.view(),
                     {d_q.view(), d_k.view(), d_v.view(), d_beta});
  for (const Tensor* tensor : {&o, &lse, &d_q, &d_k, &d_v}) EXPECT_TRUE(tensor->fences_intact());
  return {o.values(), lse.values(), d_q.values(), d_k.values(), d_v.values(), d_beta};
}

// Adds rows [count, dim] of one head into a dense [B, T, H, D].
template <class Scalar>
void scatter(const reference::Matrix<Scalar>& rows, int64_t first_row, int64_t row_stride,
             std::vector<Scalar>& values) {
  for (int64_t t = 0; t < rows.rows; ++t) {
    reference::add_scaled(&values[(first_row + t * row_stride) * rows.columns], Scalar(1), rows[t], rows.columns);
  }
}

template <class Scalar>
AttentionValues<Scalar> expected(const AttentionProblem& problem) {
  const AttentionCase& c = problem.c;
  const AttentionInputs inputs = problem.inputs();
  const int64_t keys = inputs.k.time, group = c.query_heads / c.kv_heads;
  AttentionValues<Scalar> values;
  values.o.resize(c.batch * c.queries * c.query_heads * c.value_dim);
  values.lse.resize(c.batch * c.queries * c.query_heads);
  values.d_q.resize(c.batch * c.queries * c.query_heads * c.key_dim);
  values.d_k.resize(c.batch * keys * c.kv_heads * c.key_dim);
  values.d_v.resize(c.batch * keys * c.kv_heads * c.value_dim);
  values.d_beta.resize(c.query_heads);
  const std::vector<int64_t> whole{0, c.queries};
  const std::vector<int64_t>& offsets = c.cu_seqlens.empty() ? whole : c.cu_seqlens;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const int64_t first = offsets[s], queries = offsets[s + 1] - first;
      const int64_t sequence_keys = c.cu_seqlens.empty() ? keys : queries;
      for (int64_t h = 0; h < c.query_heads; ++h) {
        const reference::AttentionHead<Scalar> head{
            reference::load<Scalar>(inputs.q, b, h, first, queries),
            reference::load<Scalar>(inputs.k, b, h / group, first, sequence_keys),
            reference::load<Scalar>(inputs.v, b, h / group, first, sequence_keys),
            inputs.beta[h],
            c.window,
            c.query_offset};
        const auto forward = reference::attention_forward(head);
        const auto gradients = reference::attention_backward(
            head, forward, reference::load<Scalar>(problem.d_o.view(), b, h, first, queries));
        const int64_t query_row = (b * c.queries + first) * c.query_heads + h;
        const int64_t key_row = (b * keys + first) * c.kv_heads + h / group;
        scatter(forward.o, query_row, c.query_heads, values.o);
        for (int64_t t = 0; t < queries; ++t) values.lse[query_row + t * c.query_heads] = forward.lse[t];
        scatter(gradients.d_q, query_row, c.query_heads, values.d_q);
        scatter(gradients.d_k, key_row, c.kv_heads, values.d_k);
        scatter(gradients.d_v, key_row, c.kv_heads, values.d_v);
        values.d_beta[h] += gradients.d_beta;
      }
    }
  }
  return values;
}

void expect_matches(const AttentionCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const AttentionProblem problem(c);
  const AttentionValues<float> actual = run(problem);
  const AttentionValues<double> truth = expected<double>(problem);
  const AttentionValues<float> plain = expected<float>(problem);
  const double beta = std::abs(problem.beta.empty() ? 0 : problem.beta.back());
  const double product = 4 * std::sqrt(static_cast<double>(c.value_dim));  // do . v
  EXPECT_TRUE(calibrated({.actual = actual.o, .plain = plain.o, .truth = truth.o}));
  EXPECT_TRUE(calibrated({.actual = actual.lse, .plain = plain.lse, .truth = truth.lse, .magnitude = 1}));
  EXPECT_TRUE(calibrated({.actual = actual.d_q, .plain = plain.d_q, .truth = truth.d_q, .magnitude = beta * product}));
  EXPECT_TRUE(calibrated({.actual = actual.d_k, .plain = plain.d_k, .truth = truth.d_k, .magnitude = beta * product}));
  EXPECT_TRUE(calibrated({.actual = actual.d_v, .plain = plain.d_v, .truth = truth.d_v}));
  const double terms = std::sqrt(static_cast<double>(c.batch * c.queries));
  EXPECT_TRUE(calibrated(
      {.actual = actual.d_beta, .plain = plain.d_beta, .truth = truth.d_beta, .magnitude = terms * product}));
}

using Attention = OnIsa;
OVQ_ON_EVERY_ISA(Attention);

TEST_P(Attention, ShortSequencesOfAnySize) {
  for (int64_t queries : kShortTimes) {
    for (int64_t key_dim : kDims) {
      for (int64_t window : {0, 1, 5}) {
        expect_matches({.queries = queries,
                        .key_dim = key_dim,
                        .value_dim = kDims[(queries + key_dim) % 7],
                        .window = window,
                        .seed = static_cast<uint64_t>(queries * 1000 + key_dim)});
      }
    }
  }
}

// All pairs of time, key dim, value dim and window; heads and layout alternate.
TEST_P(Attention, PairsOfSizes) {
  constexpr int64_t kHeads[][3] = {{1, 1, 1}, {2, 2, 1}, {1, 4, 2}, {1, 6, 3}, {2, 3, 3}};
  constexpr int64_t kWindows[] = {0, 1, 16, 100, 1000};
  for (int64_t i = 0; i < 14; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      const auto [batch, query_heads, kv_heads] = kHeads[(i + 2 * j) % 5];
      expect_matches({.batch = batch,
                      .queries = kTimes[i],
                      .query_heads = query_heads,
                      .kv_heads = kv_heads,
                      .key_dim = kDims[j],
                      .value_dim = kDims[(i + 2 * j) % 7],
                      .window = kWindows[(i + j) % 5],
                      .layout = kLayouts[(i + j) % 3],
                      .seed = static_cast<uint64_t>(i * 7 + j)});
    }
  }
}

TEST_P(Attention, QueriesAgainstALongerCache) {
  for (int64_t queries : {1, 2, 9, 33}) {
    for (int64_t offset : {1, 8, 130}) {
      for (int64_t window : {0, 20}) {
        for (int64_t unseen : {0, 3}) {
          expect_matches({.batch = 2,
                          .queries = queries,
                          .keys = offset + queries + unseen,
                          .query_heads = 4,
                          .kv_heads = 2,
                          .key_dim = 20,
                          .window = window,
                          .query_offset = offset,
                          .layout = Layout::transposed});
        }
      }
    }
  }
}

TEST_P(Attention, KeysBeyondTheCache) {
  for (int64_t window : {0, 300, 850}) {
    expect_matches({.queries = 140,
                    .keys = 1000,
                    .query_heads = 2,
                    .kv_heads = 2,
                    .key_dim = 128,
                    .value_dim = 112,
                    .window = window,
                    .query_offset = 860});
  }
}

// Windows on both sides of the length up to which they are read in one step, several query blocks long.
TEST_P(Attention, LongSequencesInAWindow) {
  for (int64_t window : {8, 50, 128, 512, 513}) {
    expect_matches({.queries = 700, .query_heads = 3, .kv_heads = 1, .key_dim = 24, .value_dim = 40, .window = window});
  }
}

// Splitting the queries into calls, and so into panels, changes nothing.
TEST_P(Attention, PiecesOfQueriesAreTheWhole) {
  for (int64_t window : {0, 1, 8, 100, 512, 513}) {
    const AttentionProblem problem(
        {.queries = 600, .query_heads = 2, .kv_heads = 2, .key_dim = 32, .value_dim = 20, .window = window});
    const AttentionValues<float> whole = run(problem);
    int64_t first = 0;
    for (int64_t count : {1, 2, 5, 16, 17, 33, 100, 250, 3, 173}) {
      AttentionInputs in = problem.inputs();
      in.q.data = in.q.row(0, first, 0);
      in.q.time = count;
      in.k.time = in.v.time = first + count;
      in.query_offset = first;
      const Tensor o({1, count, 2, 20}), lse({1, count, 2, 1});
      attention_forward(in, {.o = o.view(), .lse = lse.view()});
      const auto part = [&](const std::vector<float>& values, int64_t row) {
        return std::span<const float>(values).subspan(first * row, count * row);
      };
      EXPECT_TRUE(same_bits(std::span<const float>(o.values()), part(whole.o, 40))) << window << ", from " << first;
      EXPECT_TRUE(same_bits(std::span<const float>(lse.values()), part(whole.lse, 2))) << window << ", from " << first;
      first += count;
    }
    ASSERT_EQ(first, 600);
  }
}

TEST_P(Attention, NoSequences) {
  const AttentionProblem problem({.batch = 0, .queries = 3, .query_heads = 2, .kv_heads = 2});
  const Tensor o({0, 3, 2, 16});
  EXPECT_NO_THROW(attention_forward(problem.inputs(), {o.view(), {}}));
}

// The last tokens, whose heads are processed together, must equal those of a call with all tokens.
TEST_P(Attention, AFewTokensOfManyHeads) {
  for (const auto [batch, query_heads, kv_heads] : {std::array<int64_t, 3>{1, 11, 11}, {3, 8, 4}, {2, 17, 17}}) {
    for (const int64_t window : {0, 20, 600}) {
      const AttentionProblem problem({.batch = batch,
                                      .queries = 700,
                                      .query_heads = query_heads,
                                      .kv_heads = kv_heads,
                                      .key_dim = 20,
                                      .value_dim = 17,
                                      .window = window});
      const AttentionValues<float> whole = run(problem);
      for (const int64_t count : {1, 2}) {
        AttentionInputs in = problem.inputs();
        in.query_offset = 700 - count;
        in.q.data = in.q.row(0, in.query_offset, 0);
        in.q.time = count;
        std::vector<float> expected;
        for (int64_t b = 0; b < batch; ++b) {
          const auto end = whole.o.begin() + (b + 1) * 700 * query_heads * 17;
          expected.insert(expected.end(), end - count * query_heads * 17, end);
        }
        for (const int threads : {1, 2, 5, 64}) {
          set_threads(threads);
          const Tensor o({batch, count, query_heads, 17});
          attention_forward(in, {o.view(), {}});
          EXPECT_TRUE(same_bits(o.values(), expected)) << problem.c << ", " << count << " at the end, " << threads;
          EXPECT_TRUE(o.fences_intact());
        }
        set_threads(0);
      }
    }
  }
}

TEST_P(Attention, Packed) {
  for (int64_t window : {0, 10}) {
    expect_matches({.queries = 200,
                    .query_heads = 2,
                    .window = window,
                    .layout = Layout::padded,
                    .cu_seqlens = {0, 1, 1, 40, 169, 200}});
  }
}

TEST_P(Attention, PackedIsTheSeparateSequences) {
  const AttentionProblem packed({.queries = 150, .query_heads = 2, .cu_seqlens = {0, 33, 33, 150}});
  const AttentionValues<float> together = run(packed);
  for (size_t s = 0; s < 3; ++s) {
    const int64_t first = packed.c.cu_seqlens[s], count = packed.c.cu_seqlens[s + 1] - first;
    AttentionProblem one({.queries = count, .query_heads = 2});
    const auto copy = [&](const Tensor& from, Tensor& to) {
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t h = 0; h < to.view().heads; ++h) {
          std::copy_n(from.row(0, first + t, h), to.view().dim, to.row(0, t, h));
        }
      }
    };
    copy(packed.q, one.q);
    copy(packed.k, one.k);
    copy(packed.v, one.v);
    copy(packed.d_o, one.d_o);
    const AttentionValues<float> alone = run(one);
    const auto part = [&](const std::vector<float>& values, int64_t row) {
      return std::span<const float>(values).subspan(first * row, count * row);
    };
    EXPECT_TRUE(same_bits(part(together.o, 32), std::span<const float>(alone.o)));
    EXPECT_TRUE(same_bits(part(together.lse, 2), std::span<const float>(alone.lse)));
    EXPECT_TRUE(same_bits(part(together.d_q, 32), std::span<const float>(alone.d_q)));
    EXPECT_TRUE(same_bits(part(together.d_k, 16), std::span<const float>(alone.d_k)));
    EXPECT_TRUE(same_bits(part(together.d_v, 16), std::span<const float>(alone.d_v)));
  }
}

TEST_P(Attention, BetaOfAnySign) {
  for (float beta : {0.0f, -0.0f, -3.0f, 1e-30f, -1e-30f})
    expect_matches({.queries = 70, .query_heads = 2, .beta = beta});
}

TEST_P(Attention, LargeLogits) {
  for (float beta : {1000.0f, -1000.0f}) {
    expect_matches({.queries = 300, .query_heads = 2, .key_dim = 64, .value_dim = 64, .beta = beta});
  }
}

TEST_P(Attention, FutureNeverChangesThePast) {
  for (float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int64_t window : {0, 16}) {
      const AttentionProblem clean({.queries = 150, .query_heads = 2, .window = window});
      const AttentionValues<float> expected = run(clean);
      for (int64_t from : {1, 15, 64, 149}) {
        AttentionProblem poisoned = clean;
        for (int64_t t = from; t < 150; ++t) {
          for (Tensor* tensor : {&poisoned.k, &poisoned.v}) std::fill_n(tensor->row(0, t, 0), 16, poison);
        }
        const AttentionValues<float> actual = run(poisoned);
        const size_t past = from * 2 * 16;
        EXPECT_TRUE(same_bits(std::span(actual.o).first(past), std::span(expected.o).first(past))) << "from " << from;
      }
    }
  }
}

// A NaN appears in every row that sees it, and in no other.
TEST_P(Attention, NanInOneKeyReachesTheRowsThatSeeIt) {
  for (const int64_t window : {0, 40}) {
    AttentionProblem problem({.queries = 150, .query_heads = 2, .window = window});
    problem.k.row(0, 30, 0)[3] = std::numeric_limits<float>::quiet_NaN();
    const AttentionValues<float> values = run(problem);
    for (int64_t t = 0; t < 150; ++t) {
      const bool sees = t >= 30 && (window == 0 || t - 30 < window);
      for (int64_t i = t * 2 * 16; i < (t + 1) * 2 * 16; ++i) {
        ASSERT_EQ(std::isnan(values.o[i]), sees) << "window " << window << ", row " << t;
      }
    }
  }
}

// A cache stored as bfloat16 gives the same as in float32: few queries read it directly, many widen it.
TEST_P(Attention, ACacheInBfloat16) {
  for (const int64_t queries : {1, 2, 5, 6, 40}) {
    for (const int64_t dim : {8, 15, 64}) {
      AttentionProblem problem({.batch = 2,
                                .queries = queries,
                                .keys = 300,
                                .query_heads = queries == 2 ? 2 : 1,
                                .key_dim = dim,
                                .value_dim = dim + 3,
                                .window = queries % 2 == 0 ? 100 : 0,
                                .query_offset = 300 - queries});
      std::vector<Bfloat16> stored[2];
      for (Tensor* x : {&problem.k, &problem.v}) {
        x->each_row([&](float* row) {
          for (int64_t i = 0; i < x->view().dim; ++i) {
            stored[x == &problem.v].push_back(to_bfloat16(row[i]));
            row[i] = to_float(stored[x == &problem.v].back());
          }
        });
      }
      AttentionInputs narrow = problem.inputs();
      narrow.narrow_k = View<const Bfloat16>::contiguous(stored[0].data(), 2, 300, 1, dim);
      narrow.narrow_v = View<const Bfloat16>::contiguous(stored[1].data(), 2, 300, 1, dim + 3);
      const Tensor expected({2, queries, problem.c.query_heads, dim + 3});
      const Tensor actual({2, queries, problem.c.query_heads, dim + 3});
      attention_forward(problem.inputs(), {expected.view(), {}});
      EXPECT_TRUE(throws_naming<std::invalid_argument>("k", [&] { attention_forward(narrow, {actual.view(), {}}); }));
      narrow.k = narrow.v = {};
      attention_forward(narrow, {actual.view(), {}});
      EXPECT_TRUE(same_bits(actual.values(), expected.values())) << queries << " " << dim;
      EXPECT_TRUE(actual.fences_intact());
    }
  }
}

TEST_P(Attention, LogSumExpMayBeAbsent) {
  const AttentionProblem problem({.queries = 50});
  const Tensor o({1, 50, 1, 16});
  attention_forward(problem.inputs(), {.o = o.view(), .lse = {}});
  EXPECT_TRUE(same_bits(o.values(), run(problem).o));
}

TEST_P(Attention, PermutingABatchPermutesTheOutputs) {
  const AttentionProblem problem({.batch = 3, .queries = 40, .query_heads = 2});
  AttentionProblem swapped = problem;
  for (Tensor* tensor : {&swapped.q, &swapped.k, &swapped.v, &swapped.d_o}) {
    const View<float> view = tensor->view();
    std::swap_ranges(view.row(0, 0, 0), view.row(1, 0, 0), view.row(2, 0, 0));
  }
  const AttentionValues<float> expected = run(problem), actual = run(swapped);
  const auto parts = {&AttentionValues<float>::o, &AttentionValues<float>::lse, &AttentionValues<float>::d_q,
                      &AttentionValues<float>::d_k, &AttentionValues<float>::d_v};
  for (const auto part : parts) {
    std::vector<float> permuted = expected.*part;
    const size_t third = permuted.size() / 3;
    std::swap_ranges(permuted.begin(), permuted.begin() + third, permuted.begin() + 2 * third);
    EXPECT_TRUE(same_bits(actual.*part, permuted));
  }
}

}  // namespace
}  // namespace ovq::kernels::test
