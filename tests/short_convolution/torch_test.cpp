#include "ovq/ops/short_convolution/torch.h"

#include "ovq/ops/torch/backend.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

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

// Output and gradients of the kernels, with and without silu, against the loops in double.
TEST(ShortConvolution, Kernels) {
  torch::manual_seed(5);
  for (const Activation activation : {Activation::none, Activation::silu}) {
    const std::vector<Tensor> inputs = {at::randn({2, 70, 20}, kDouble), at::randn({20, 4}, kDouble),
                                        at::randn({20}, kDouble), at::randn({2, 3, 20}, kDouble)};
    const auto results = [&](Backend backend, at::ScalarType type) {
      const BackendScope scope(backend);
      std::vector<Tensor> x;
      for (const Tensor& input : inputs) x.push_back(input.to(type).clone().requires_grad_(true));
      const Tensor y =
          short_convolution({.x = x[0], .weight = x[1], .bias = x[2], .before = x[3], .activation = activation});
      std::vector<Tensor> all = torch::autograd::grad({weighted_sum({y})}, x);
      all.push_back(y);
      return all;
    };
    const auto actual = results(Backend::fused, at::kFloat), plain = results(Backend::composed, at::kFloat);
    const auto truth = results(Backend::automatic, at::kDouble);
    for (size_t i = 0; i < truth.size(); ++i) EXPECT_TRUE(calibrated(actual[i], plain[i], truth[i])) << i;
  }
}

}  // namespace
}  // namespace ovq::ops::test
