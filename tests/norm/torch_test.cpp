#include "ovq/ops/norm/torch.h"

#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
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
    EXPECT_TRUE(close(l2_norm(x), x / (x.square().sum(-1, true) + 1e-6).sqrt(), 1e-12));
  }
  const Tensor x = at::randn({6, 4, 8}, kDouble).transpose(0, 1), weight = at::randn({8}, kDouble);
  EXPECT_TRUE(close(rms_norm(x, weight), plain_rms_norm(x, weight), 1e-12));
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
        {{"x", x}}, [&] { return std::vector{l2_norm(x)}; }, tolerance, 1e-4 * scale);
  }
}

}  // namespace
}  // namespace ovq::ops::test
