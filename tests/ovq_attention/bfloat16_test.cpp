// Dictionaries stored as bfloat16: rounding, computation, conversions.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "ovq/core/bfloat16.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/choices.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

constexpr double kHalfUnit = 1.0 / 256;  // half a unit in the last place, relative to the number at most

TEST(Bfloat16, EveryPatternIsItsOwnNearest) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bfloat16 x{static_cast<uint16_t>(bits)};
    const float wide = to_float(x);
    EXPECT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(wide))));
    } else {
      EXPECT_EQ(to_bfloat16(wide), x);
    }
  }
}

TEST(Bfloat16, RoundsToNearestTiesToEven) {
  Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = random.normal() * std::exp(5 * random.normal());
    const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);  // toward zero
    const double low = to_float({below}), high = to_float({static_cast<uint16_t>(below + 1)});
    const double to_low = std::abs(x - low), to_high = std::abs(high - x);
    const bool down = to_low < to_high || (to_low == to_high && below % 2 == 0);
    EXPECT_EQ(to_bfloat16(x).bits, down ? below : below + 1) << x;
  }
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(to_float(to_bfloat16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bfloat16, RowsAreConvertedWhole) {
  Random random(2);
  for (const int64_t dim : {0, 1, 15, 16, 17, 40, 64}) {
    std::vector<float> row(dim), back(dim);
    std::generate(row.begin(), row.end(), [&] { return random.normal(); });
    std::vector<Bfloat16> narrow(dim);
    detail::narrow_row(row.data(), dim, narrow.data());
    detail::widen_row(narrow.data(), dim, back.data());
    for (int64_t i = 0; i < dim; ++i) EXPECT_EQ(back[i], to_float(to_bfloat16(row[i])));
  }
}

OvqCase narrow_case(const OvqOptions& options) {
  return {.batch = 2,
          .tokens = 6 * options.chunk + 3,
          .query_heads = 4,
          .kv_heads = 2,
          .key_dim = 40,
          .value_dim = 36,
          .options = options,
          .dtype = StateDtype::bfloat16};
}

using OvqBfloat16 = OnIsa;
OVQ_ON_EVERY_ISA(OvqBfloat16);

// f(first, count) for each chunk of the tokens
template <class F>
void for_each_chunk(const OvqCase& c, const F& f) {
  for (int64_t first = 0; first < c.tokens; first += c.options.chunk) {
    f(first, std::min(c.options.chunk, c.tokens - first));
  }
}

// Must equal the float32 path with its dictionary rounded after each write, bit for bit.
void expect_rounded_writes(const OvqCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const OvqProblem problem(c);
  std::vector<OvqState> narrow = problem.states(), wide{narrow[0].to(StateDtype::float32)};
  const OvqForward forward = run_forward(problem.inputs(), narrow);
  for_each_chunk(c, [&](int64_t first, int64_t count) {
    const OvqForward expected = run_forward(problem.inputs(first, count), wide);
    EXPECT_TRUE(same_bits(dense(forward.o.slice(first, count)), expected.o.values()));
    EXPECT_TRUE(same_bits(dense(forward.lse.slice(first, count)), expected.lse.values()));
    wide[0] = wide[0].to(StateDtype::bfloat16).to(StateDtype::float32);
  });
  expect_same_state(narrow[0], wide[0].to(StateDtype::bfloat16));
}

TEST_P(OvqBfloat16, IsTheFloat32PathWithRoundedWrites) {
  for (const int64_t chunk : {8, 40}) {
    for (const OvqOptions& options : option_variants(chunk, 60)) expect_rounded_writes(narrow_case(options));
  }
  expect_rounded_writes({.tokens = 900,
                         .key_dim = 16,
                         .value_dim = 15,
                         .options = {.chunk = 64, .centroids = 900, .growth = Growth::all},
                         .dtype = StateDtype::bfloat16});
}

// Against the plain loops on the stored dictionary, chunk by chunk, with the assignments of the fast path.
TEST_P(OvqBfloat16, MatchesThePlainLoops) {
  for (const OvqOptions& options : option_variants(16, 40)) {
    const OvqCase c = narrow_case(options);
    SCOPED_TRACE(testing::Message() << c);
    const OvqProblem problem(c);
    std::vector<OvqState> states = problem.states();
    for_each_chunk(c, [&](int64_t first, int64_t count) {
      const OvqInputs inputs = problem.inputs(first, count);
      const std::vector<OvqState> before{states[0].to(StateDtype::float32)};
      const OvqForward forward = run_forward(inputs, states);
      const auto truth = expected_forward<double>(inputs, before, forward.assignments);
      const auto plain = expected_forward<float>(inputs, before, forward.assignments);
      EXPECT_TRUE(calibrated({.actual = forward.o.values(), .plain = plain.o, .truth = truth.o}));
      EXPECT_TRUE(calibrated({.actual = forward.lse.values(), .plain = plain.lse, .truth = truth.lse, .magnitude = 1}));
      EXPECT_TRUE(optimal_choices(inputs, before, truth));
      const StateValues<float> after = values_of(states[0]);
      const StateValues<double> expected = final_values(inputs, truth)[0];
      const auto rounded = [](const std::vector<float>& actual, const std::vector<double>& exact) {
        ASSERT_EQ(actual.size(), exact.size());
        for (size_t i = 0; i < exact.size(); ++i) {
          ASSERT_NEAR(actual[i], exact[i], kHalfUnit * std::abs(exact[i]) + 1e-6) << i;
        }
      };
      rounded(after.keys, expected.keys);
      rounded(after.values, expected.values);
    });
  }
}

// With the same assignments the outputs differ by the precision of 8 bits, and do differ.
TEST_P(OvqBfloat16, IsCloseToFloat32) {
  for (const OvqOptions& options : option_variants(16, 40)) {
    const OvqCase c = narrow_case(options);
    SCOPED_TRACE(testing::Message() << c);
    const OvqProblem problem(c);
    std::vector<OvqState> narrow = problem.states(), wide{narrow[0].to(StateDtype::float32)};
    const OvqForward expected = run_forward(problem.inputs(), wide);
    const OvqForward actual = run_forward(problem.inputs(), narrow, expected.assignments);
    const std::vector<float> e = expected.o.values(), a = actual.o.values();
    double squares = 0, difference = 0;
    for (size_t i = 0; i < e.size(); ++i) {
      squares += static_cast<double>(e[i]) * e[i];
      difference += std::pow(static_cast<double>(a[i]) - e[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / squares), 0.02);
    EXPECT_GT(std::sqrt(difference / squares), 1e-5);
  }
}

TEST_P(OvqBfloat16, NanKeysKeepIndicesValid) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const OvqOptions& options : option_variants(8, 12)) {
    for (const float poison : {nan, infinity, -infinity, std::numeric_limits<float>::max()}) {
      OvqProblem problem({.tokens = 45, .options = options, .dtype = StateDtype::bfloat16});
      for (const int64_t t : {0, 11, 12, 30}) problem.k.row(0, t, 0)[5] = poison;
      std::vector<OvqState> states = problem.states();
      const OvqForward forward = run_forward(problem.inputs(), states);
      EXPECT_TRUE(valid_assignments(problem.inputs(), problem.states(), forward.assignments));
    }
  }
}

TEST(OvqStateDtype, ConvertsThereAndBack) {
  for (const OvqOptions& options : option_variants(8, 10)) {
    const OvqProblem problem({.batch = 2, .tokens = 61, .kv_heads = 1, .key_dim = 6, .options = options});
    for (const int64_t tokens : {0, 5, 8, 29, 61}) {
      std::vector<OvqState> states = problem.states();
      run_forward(problem.inputs(0, tokens), states);
      const OvqState narrow = states[0].to(StateDtype::bfloat16), wide = narrow.to(StateDtype::float32);
      EXPECT_EQ(narrow.dtype(), StateDtype::bfloat16);
      EXPECT_EQ(wide.dtype(), StateDtype::float32);
      EXPECT_EQ(bytes_of(wide.to(StateDtype::bfloat16)), bytes_of(narrow));
      EXPECT_EQ(bytes_of(states[0].to(StateDtype::float32)), bytes_of(states[0]));
      StateValues<float> expected = values_of(states[0]);
      for (auto* rows : {&expected.keys, &expected.values}) {
        for (float& x : *rows) x = to_float(to_bfloat16(x));
      }
      expect_same_values(values_of(narrow), expected);
    }
  }
}

TEST(OvqStateDtype, TakesHalfTheMemoryAtMostCentroids) {
  const OvqShape shape{.batch = 1, .kv_heads = 2, .key_dim = 128, .value_dim = 128};
  const OvqOptions options{.chunk = 16, .centroids = 4096, .growth = Growth::all};
  const auto wide = static_cast<double>(OvqState::nbytes_after(shape, options, 4096));
  EXPECT_NEAR(OvqState::nbytes_after(shape, options, 4096, StateDtype::bfloat16) / wide, 0.5, 0.02);
  EXPECT_NEAR(OvqState::file_bytes_after(shape, options, 4096, StateDtype::bfloat16) /
                  static_cast<double>(OvqState::file_bytes_after(shape, options, 4096)),
              0.5, 0.02);
}

TEST(OvqStateDtype, ViewsOfTheOtherDtypeAreErrors) {
  const OvqState wide({1, 1, 4, 4}, {}), narrow({1, 1, 4, 4}, {}, StateDtype::bfloat16);
  EXPECT_TRUE(throws_naming<std::invalid_argument>("bfloat16", [&] { narrow.keys(); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("bfloat16", [&] { narrow.values(); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("float32", [&] { wide.narrow_keys(); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("float32", [&] { wide.narrow_values(); }));
}

TEST(OvqStateDtype, HasNoBackward) {
  const OvqProblem problem({.tokens = 20, .options = {.chunk = 8, .centroids = 10}, .dtype = StateDtype::bfloat16});
  const std::vector<OvqState> initial = problem.states();
  std::vector<OvqState> states = initial;
  const OvqForward forward = run_forward(problem.inputs(), states);
  const Tensor d({1, 20, 1, 16});
  std::vector<float> d_beta(1);
  EXPECT_TRUE(throws_naming<std::invalid_argument>("bfloat16", [&] {
    ovq_attention_backward(
        problem.inputs(),
        {.o = forward.o.view(), .lse = forward.lse.view(), .assignments = forward.assignments, .initial = initial},
        {.d_o = forward.o.view(), .d_final = {}},
        {.d_q = d.view(), .d_k = d.view(), .d_v = d.view(), .d_beta = d_beta, .d_initial = {}});
  }));
}

}  // namespace
}  // namespace ovq::kernels::test
