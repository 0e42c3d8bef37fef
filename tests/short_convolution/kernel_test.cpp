// The short convolution, forward and backward, against the plain loops.
#include "ovq/ops/short_convolution/short_convolution.h"

#include <gtest/gtest.h>

#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/recurrence/kernel.h"
#include "ovq/ops/short_convolution/reference.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"

namespace ovq::kernels::test {
namespace {

using reference::Matrix;

struct ConvolutionCase {
  int64_t batch = 1, time = 33, channels = 16, width = 4;
  bool silu = true, bias = true, before = true;
  Layout layout = Layout::dense;
  std::vector<int64_t> cu_seqlens;
};

std::ostream& operator<<(std::ostream& out, const ConvolutionCase& c) {
  return out << "batch " << c.batch << ", time " << c.time << ", channels " << c.channels << ", width " << c.width
             << ", silu " << c.silu << ", bias " << c.bias << ", before " << c.before;
}

template <class Scalar>
struct ConvolutionValues {
  std::vector<Scalar> y, d_x, d_taps, d_bias, d_before;
};

struct ConvolutionProblem {
  explicit ConvolutionProblem(const ConvolutionCase& c) : c(c) {
    Random random(static_cast<uint64_t>(c.time * 100 + c.channels));
    x = random_tensor({c.batch, c.time, 1, c.channels}, c.layout, random);
    d_y = random_tensor({c.batch, c.time, 1, c.channels}, c.layout, random);
    before = random_tensor({c.batch, c.width - 1, 1, c.channels}, c.layout, random);
    for (int64_t i = 0; i < c.width * c.channels; ++i) taps.push_back(random.normal());
    for (int64_t i = 0; i < c.channels; ++i) bias.push_back(random.normal());
  }
  ShortConvolutionInputs inputs() const {
    return {.x = x.view(),
            .taps = taps,
            .bias = c.bias ? std::span<const float>(bias) : std::span<const float>(),
            .before = c.before ? View<const float>(before.view()) : View<const float>(),
            .silu = c.silu,
            .cu_seqlens = c.cu_seqlens};
  }
  ConvolutionCase c;
  Tensor x, d_y, before;
  std::vector<float> taps, bias;
};

ConvolutionValues<float> run(const ConvolutionProblem& p) {
  const ConvolutionCase& c = p.c;
  const Tensor y({c.batch, c.time, 1, c.channels}, c.layout), d_x({c.batch, c.time, 1, c.channels}, c.layout);
  const Tensor d_before({c.batch, c.width - 1, 1, c.channels}, c.layout);
  std::vector<float> d_taps(p.taps.size()), d_bias(c.bias ? c.channels : 0);
  short_convolution_forward(p.inputs(), y.view());
  short_convolution_backward(
      p.inputs(), p.d_y.view(),
      {.d_x = d_x.view(), .d_taps = d_taps, .d_bias = d_bias, .d_before = c.before ? d_before.view() : View<float>()});
  for (const Tensor* x : {&y, &d_x, &d_before}) EXPECT_TRUE(x->fences_intact());
  return {y.values(), d_x.values(), d_taps, d_bias, c.before ? d_before.values() : std::vector<float>()};
}

template <class Scalar>
void add_to(std::vector<Scalar>& to, const Matrix<Scalar>& x) {
  to.resize(x.data.size());
  for (size_t i = 0; i < to.size(); ++i) to[i] += x.data[i];
}

template <class Scalar>
ConvolutionValues<Scalar> expected_convolution(const ConvolutionProblem& p) {
  const ConvolutionCase& c = p.c;
  ConvolutionValues<Scalar> all;
  const std::vector<int64_t> whole{0, c.time};
  const std::vector<int64_t>& offsets = c.cu_seqlens.empty() ? whole : c.cu_seqlens;
  Matrix<Scalar> taps(c.width, c.channels), bias(1, c.channels), no_taps = taps, no_bias = bias;
  std::copy(p.taps.begin(), p.taps.end(), taps.data.begin());
  if (c.bias) std::copy(p.bias.begin(), p.bias.end(), bias.data.begin());
  add_to(all.d_taps, no_taps);
  if (c.bias) add_to(all.d_bias, no_bias);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const int64_t first = offsets[s], count = offsets[s + 1] - first;
      const reference::Convolution<Scalar> in{reference::load<Scalar>(p.x.view(), b, 0, first, count), taps, bias,
                                              c.before ? reference::load<Scalar>(p.before.view(), b, 0, 0, c.width - 1)
                                                       : Matrix<Scalar>(c.width - 1, c.channels),
                                              c.silu};
      const auto y = reference::short_convolution_forward(in);
      const auto d =
          reference::short_convolution_backward(in, reference::load<Scalar>(p.d_y.view(), b, 0, first, count));
      all.y.insert(all.y.end(), y.data.begin(), y.data.end());
      all.d_x.insert(all.d_x.end(), d.d_x.data.begin(), d.d_x.data.end());
      if (c.before) all.d_before.insert(all.d_before.end(), d.d_before.data.begin(), d.d_before.data.end());
      add_to(all.d_taps, d.d_taps);
      if (c.bias) add_to(all.d_bias, d.d_bias);
    }
  }
  return all;
}

void expect_matches(const ConvolutionCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const ConvolutionProblem problem(c);
  const auto actual = run(problem), plain = expected_convolution<float>(problem);
  const auto truth = expected_convolution<double>(problem);
  EXPECT_TRUE(calibrated({.actual = actual.y, .plain = plain.y, .truth = truth.y, .magnitude = 1}));
  EXPECT_TRUE(calibrated({.actual = actual.d_x, .plain = plain.d_x, .truth = truth.d_x, .magnitude = 1}));
  EXPECT_TRUE(calibrated({.actual = actual.d_taps, .plain = plain.d_taps, .truth = truth.d_taps, .magnitude = 1}));
  EXPECT_TRUE(calibrated({.actual = actual.d_bias, .plain = plain.d_bias, .truth = truth.d_bias, .magnitude = 1}));
  EXPECT_TRUE(
      calibrated({.actual = actual.d_before, .plain = plain.d_before, .truth = truth.d_before, .magnitude = 1}));
}

using ShortConvolution = OnIsa;
OVQ_ON_EVERY_ISA(ShortConvolution);

TEST_P(ShortConvolution, AnySize) {
  constexpr int64_t kChannels[] = {1, 15, 16, 60, 128, 130, 300};
  for (int64_t i = 0; i < 14; ++i) {
    for (const int64_t width : {1, 2, 3, 4, 7}) {
      expect_matches({.batch = 1 + i % 2,
                      .time = kTimes[i],
                      .channels = kChannels[(i + width) % 7],
                      .width = width,
                      .silu = (i + width) % 2 == 0,
                      .bias = i % 3 != 0,
                      .before = i % 3 != 1,
                      .layout = kLayouts[i % 3]});
    }
  }
}

TEST_P(ShortConvolution, Packed) {
  expect_matches({.time = 200, .channels = 20, .before = false, .cu_seqlens = {0, 1, 1, 40, 169, 200}});
}

TEST_P(ShortConvolution, SameBitsForAnyNumberOfThreads) {
  const ConvolutionProblem problem({.batch = 3, .time = 150, .channels = 300});
  set_threads(1);
  const ConvolutionValues<float> expected = run(problem);
  for (const int threads : {2, 3, 7}) {
    set_threads(threads);
    const ConvolutionValues<float> actual = run(problem);
    EXPECT_TRUE(same_bits(actual.y, expected.y));
    EXPECT_TRUE(same_bits(actual.d_x, expected.d_x));
    EXPECT_TRUE(same_bits(actual.d_taps, expected.d_taps));
    EXPECT_TRUE(same_bits(actual.d_bias, expected.d_bias));
  }
  set_threads(0);
}

// Results larger than the caches bypass them if their rows are aligned.
TEST(LargeConvolution, SameBitsPastTheCaches) {
  ConvolutionCase c{.time = 16500, .channels = 256};
  const ConvolutionProblem dense(c);
  c.layout = Layout::padded;
  const ConvolutionProblem padded(c);
  ASSERT_TRUE(recurrence::Strided<float>(dense.x.view()).past_caches);
  ASSERT_FALSE(recurrence::Strided<float>(padded.x.view()).past_caches);
  const ConvolutionValues<float> actual = run(dense), expected = run(padded);
  EXPECT_TRUE(same_bits(actual.y, expected.y));
  EXPECT_TRUE(same_bits(actual.d_x, expected.d_x));
}

TEST_P(ShortConvolution, LargeInputsStayFinite) {
  const ConvolutionProblem problem({.time = 8, .channels = 16});
  for (const float value : {1e4f, -1e4f, 1e30f, -1e30f}) {
    ConvolutionProblem large = problem;
    large.x.fill(value);
    for (const float y : run(large).y) EXPECT_TRUE(std::isfinite(y));
  }
}

}  // namespace
}  // namespace ovq::kernels::test
