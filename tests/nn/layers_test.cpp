#include "ovq/nn/parameters.h"
#include "ovq/nn/replaced.h"
#include "ovq/nn/rms_norm.h"
#include "ovq/nn/short_convolution.h"
#include "tests/nn/tensor_checks.h"

namespace ovq::nn::test {
namespace {

TEST(TensorChecks, NanAndInfinityFail) {
  const Tensor good = at::ones({3}), nan = at::full({3}, NAN), infinite = at::full({3}, INFINITY);
  EXPECT_TRUE(close(good, good, 0));
  EXPECT_FALSE(close(nan, good, 1));
  EXPECT_FALSE(close(good, nan, 1));
  EXPECT_FALSE(close(nan, nan, 1));
  EXPECT_FALSE(close(infinite, infinite, 1));
  EXPECT_FALSE(close(at::ones({3, 1}), good, 1));
  EXPECT_FALSE(calibrated(nan, good, good.to(at::kDouble)));
  EXPECT_FALSE(calibrated(good, nan, good.to(at::kDouble)));
  EXPECT_TRUE(calibrated(good, good, good.to(at::kDouble)));
}

Tensor plain_rms_norm(const Tensor& x, const Tensor& weight) {
  return x / (x.square().mean(-1, true) + 1e-6).sqrt() * weight;
}

TEST(RmsNorm, EqualsFormula) {
  torch::manual_seed(1);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1}, {5, 7}, {2, 65, 33}, {3, 1, 4, 128}, {0, 8}}) {
    const Tensor x = at::randn(shape, kDouble), weight = at::randn({shape.back()}, kDouble);
    EXPECT_TRUE(close(rms_norm(x, weight), plain_rms_norm(x, weight), 1e-12));
    EXPECT_TRUE(close(rms_norm(x.to(at::kFloat), weight.to(at::kFloat)), plain_rms_norm(x, weight), 1e-5));
    EXPECT_TRUE(close(l2n(x), x / (x.square().sum(-1, true) + 1e-6).sqrt(), 1e-12));
  }
  const Tensor x = at::randn({6, 4, 8}, kDouble).transpose(0, 1), weight = at::randn({8}, kDouble);
  EXPECT_TRUE(close(rms_norm(x, weight), plain_rms_norm(x, weight), 1e-12));
  EXPECT_TRUE(close(RMSNorm(16)->forward(at::full({2, 16}, 3.0f)), at::ones({2, 16}), 1e-6));
  EXPECT_THROW(rms_norm(x, at::ones({7}, kDouble)), std::invalid_argument);
}

TEST(RmsNorm, GroupsAreNormalisedAlone) {
  torch::manual_seed(1);
  for (const int64_t groups : {1, 2, 3, 6}) {
    const Tensor x = at::randn({5, 70, 6 * 4}, kDouble) * at::arange(1, 25, kDouble), weight = at::randn({24}, kDouble);
    std::vector<Tensor> parts;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t size = 24 / groups, first = group * size;
      parts.push_back(plain_rms_norm(x.narrow(-1, first, size), weight.narrow(0, first, size)));
    }
    const Tensor expected = at::cat(parts, -1);
    EXPECT_TRUE(close(rms_norm(x, weight, 1e-6, groups), expected, 1e-12)) << groups;
    EXPECT_TRUE(close(rms_norm(x.to(at::kFloat), weight, 1e-6, groups), expected, 1e-5)) << groups;  // composed
  }
  EXPECT_EQ(message_of([] {
              rms_norm(at::ones({2, 6}), at::ones({6}), 1e-6, 4);
            }),
            "[rms_norm] groups is 4; must divide the last dimension of x, 6");
}

TEST(RmsNorm, Gradients) {
  torch::manual_seed(2);
  Tensor grouped = at::randn({3, 35, 6}, kDouble), weights = at::randn({6}, kDouble);
  expect_gradients(
      {{"x", grouped}, {"weight", weights}}, [&] { return std::vector{rms_norm(grouped, weights, 1e-6, 3)}; }, 1e-6);
  for (const double scale : {1.0, 1e-3}) {  // the eps counts in the second
    Tensor x = at::randn({3, 35, 5}, kDouble) * scale, weight = at::randn({5}, kDouble);
    const double tolerance = 1e-6;
    expect_gradients(
        {{"x", x}, {"weight", weight}}, [&] { return std::vector{rms_norm(x, weight)}; }, tolerance, 1e-4 * scale);
    expect_gradients(
        {{"x", x}}, [&] { return std::vector{l2n(x)}; }, tolerance, 1e-4 * scale);
  }
}

TEST(Replaced, StandsInWhileItIsGuarded) {
  torch::manual_seed(5);
  Projection projection = make_projection(4, 3), other = make_projection(4, 3);
  const Tensor x = at::randn({2, 4}), plain = projection(x), replaced = at::randn({3, 4});
  const Replaced tensors{.tensors = {{projection->weight.unsafeGetTensorImpl(), replaced}}};
  const Replaced parts{
      .parts = {{projection.get(), [](const Tensor& in, const Tensor&, const auto&) { return 2 * in; }}}};
  {
    const ReplacedGuard guard(&tensors);
    EXPECT_TRUE(at::equal(projection(x), at::linear(x, replaced)));
    EXPECT_TRUE(at::equal(other(x), at::linear(x, other->weight)));
    {
      const ReplacedGuard inner(&parts);
      EXPECT_TRUE(at::equal(projection(x), 2 * x));
    }
    const ReplacedGuard none(nullptr);
    EXPECT_TRUE(at::equal(projection(x), plain));
  }
  EXPECT_TRUE(at::equal(projection(x), plain));
  EXPECT_THROW(projection(x.to(at::kDouble)), c10::TypeError);
}

Tensor plain_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before) {
  const int64_t channels = x.size(2), width = weight.size(1);
  const Tensor all = at::cat({before, x}, 1).transpose(1, 2);
  return torch::conv1d(all, weight.view({channels, 1, width}), bias, 1, at::IntArrayRef{0}, 1, channels)
      .transpose(1, 2);
}

TEST(ShortConvolution, EqualsConv1d) {
  torch::manual_seed(3);
  for (const int64_t time : {1, 2, 3, 4, 65}) {
    for (const int64_t width : {1, 2, 4, 5}) {
      for (const int64_t channels : {1, 63, 130}) {
        const Tensor x = at::randn({2, time, 2 * channels}, kDouble).narrow(2, channels, channels);  // strided
        const Tensor weight = at::randn({channels, width}, kDouble), bias = at::randn({channels}, kDouble);
        const Tensor zeros = at::zeros({2, width - 1, channels}, kDouble);
        const Tensor before = at::randn({2, width - 1, channels}, kDouble);
        EXPECT_TRUE(
            close(short_convolution({.x = x, .weight = weight}), plain_convolution(x, weight, {}, zeros), 1e-12));
        EXPECT_TRUE(close(short_convolution({.x = x, .weight = weight, .bias = bias, .before = before}),
                          plain_convolution(x, weight, bias, before), 1e-12));
      }
    }
  }
}

TEST(ShortConvolution, Gradients) {
  torch::manual_seed(4);
  Tensor x = at::randn({2, 6, 3}, kDouble), weight = at::randn({3, 4}, kDouble), bias = at::randn({3}, kDouble);
  Tensor before = at::randn({2, 3, 3}, kDouble);
  expect_gradients({{"x", x}, {"weight", weight}, {"bias", bias}, {"before", before}}, [&] {
    return std::vector{short_convolution({.x = x, .weight = weight, .bias = bias, .before = before})};
  });
  const Tensor cu_seqlens = at::tensor({0, 2, 2, 3, 6});
  Tensor packed = at::randn({1, 6, 3}, kDouble);
  expect_gradients({{"x", packed}, {"weight", weight}}, [&] {
    return std::vector{short_convolution({.x = packed, .weight = weight, .cu_seqlens = cu_seqlens})};
  });
}

TEST(ShortConvolution, PackedSequencesAreAlone) {
  torch::manual_seed(5);
  ShortConvolution convolution(ShortConvolutionOptions{.channels = 5, .bias = true, .activation = Activation::silu});
  const Tensor x = at::randn({1, 20, 5});
  const Tensor y = convolution->forward(x, at::tensor({0, 1, 1, 9, 20}));
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 9}, {9, 20}}) {
    EXPECT_TRUE(close(y.slice(1, begin, end), convolution->forward(x.slice(1, begin, end)), 1e-6));
  }
  EXPECT_THROW(convolution->forward(x, at::tensor({0, 19})), std::invalid_argument);
}

TEST(ShortConvolution, PiecesCarryInputs) {
  torch::manual_seed(6);
  ShortConvolution convolution(ShortConvolutionOptions{.channels = 5});
  const Tensor x = at::randn({2, 12, 5}), y = convolution->forward(x);
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{12}, {1, 11}, {2, 1, 0, 9}, {5, 7}, {1, 1, 1, 1, 8}}) {
    std::vector<Tensor> parts;
    Tensor before;
    for (const Tensor& piece : x.split_with_sizes(pieces, 1)) parts.push_back(convolution->forward(piece, before));
    EXPECT_TRUE(close(at::cat(parts, 1), y, 0));
    EXPECT_TRUE(close(before, x.slice(1, 9), 0));
  }
}

}  // namespace
}  // namespace ovq::nn::test
