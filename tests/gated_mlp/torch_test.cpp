#include "ovq/ops/gated_mlp/torch.h"

#include "tests/ops/formula_checks.h"

namespace ovq::ops::test {
namespace {

std::vector<Tensor> random_inputs(const std::vector<int64_t>& shape, int64_t inner) {
  const int64_t width = shape.back();
  return {at::randn(shape, kDouble), at::randn({width}, kDouble), at::randn({inner, width}, kDouble),
          at::randn({inner, width}, kDouble), at::randn({width, inner}, kDouble)};
}

// in: x, norm (or undefined), gate, up, down
Tensor formula(const std::vector<Tensor>& in, double eps, bool residual) {
  const Tensor n = in[1].defined() ? in[0] / (in[0].square().mean(-1, true) + eps).sqrt() * in[1] : in[0];
  const Tensor gate = at::linear(n, in[2]), up = at::linear(n, in[3]);
  const Tensor y = at::linear(gate / (1 + (-gate).exp()) * up, in[4]);
  return residual ? in[0] + y : y;
}

std::vector<Tensor> call_all(const std::vector<Tensor>& in) {
  return {
      gated_mlp({.x = in[0], .norm = in[1], .gate = in[2], .up = in[3], .down = in[4], .eps = 1e-3, .residual = true})};
}

TEST(GatedMlp, IsAsGoodAsTheFormula) {
  torch::manual_seed(1);
  for (const int64_t inner : {1, 7, 16, 33, 192}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 1}, {5, 7}, {2, 65, 33}, {3, 100, 64}}) {
      expect_as_good_as_formula(
          call_all, [](const std::vector<Tensor>& in) { return std::vector{formula(in, 1e-3, true)}; },
          random_inputs(shape, inner));
    }
  }
}

TEST(GatedMlp, WithoutNormAndResidual) {
  torch::manual_seed(2);
  std::vector<Tensor> inputs = random_inputs({3, 40, 24}, 48);
  inputs.erase(inputs.begin() + 1);
  for (const bool residual : {false, true}) {
    expect_as_good_as_formula(
        [residual](const std::vector<Tensor>& in) {
          return std::vector{gated_mlp({.x = in[0], .gate = in[1], .up = in[2], .down = in[3], .residual = residual})};
        },
        [residual](const std::vector<Tensor>& in) {
          return std::vector{formula({in[0], Tensor(), in[1], in[2], in[3]}, 0, residual)};
        },
        inputs);
  }
}

TEST(GatedMlp, ConvertsHalves) {
  torch::manual_seed(4);
  std::vector<Tensor> in;
  for (const Tensor& x : random_inputs({2, 9, 6}, 4)) in.push_back(x.to(at::kFloat));
  expect_conversions("gated_mlp", call_all, in);
  expect_no_second_derivative("gated_mlp", call_all, in);
}

TEST(GatedMlp, NoTokens) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 0, 6}, {0, 3, 6}}) {
    std::vector<Tensor> in = random_inputs(shape, 4);
    const auto results = outputs_and_gradients(call_all, in, at::kFloat);
    EXPECT_EQ(results[0].sizes(), at::IntArrayRef(shape));
    for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(close(results[i + 1], at::zeros_like(in[i]), 0)) << i;
    const torch::NoGradGuard no_grad;
    for (Tensor& x : in) x = x.to(at::kFloat);
    EXPECT_EQ(call_all(in)[0].sizes(), at::IntArrayRef(shape));
  }
}

TEST(GatedMlp, LargeInputs) {
  for (const float size : {90.0f, 1e4f, 1e15f}) {
    const Tensor x = at::tensor({size, -size}).view({2, 1}), one = at::ones({1, 1});
    const Tensor y = gated_mlp({.x = x, .gate = one, .up = one, .down = one});
    EXPECT_FLOAT_EQ(y[0][0].item<float>() / size, size);
    EXPECT_NEAR(y[1][0].item<float>(), 0, 1e-30);
  }
  const Tensor nan = at::full({1, 1}, NAN), one = at::ones({1, 1});
  EXPECT_TRUE(std::isnan(gated_mlp({.x = nan, .gate = one, .up = one, .down = one}).item<float>()));
}

TEST(GatedMlp, FrozenWeights) {
  const Tensor x = at::randn({4, 6}).requires_grad_(), gate = at::randn({5, 6}), up = at::randn({5, 6});
  const Tensor down = at::randn({6, 5}).requires_grad_();
  gated_mlp({.x = x, .gate = gate, .up = up, .down = down}).sum().backward();
  EXPECT_TRUE(x.grad().defined() && down.grad().defined());
  EXPECT_FALSE(gate.grad().defined());
}

TEST(GatedMlp, BadShapes) {
  const Tensor x = at::ones({2, 3}), gate = at::ones({4, 3}), down = at::ones({3, 4});
  EXPECT_EQ(message_of([&] { gated_mlp({.x = x, .gate = down, .up = gate, .down = down}); }),
            "[gated_mlp] gate has shape [3, 4]; must be [inner, 3]");
  EXPECT_EQ(message_of([&] { gated_mlp({.x = x, .gate = gate, .up = gate, .down = gate}); }),
            "[gated_mlp] down has shape [4, 3]; must be [3, 4]");
}

}  // namespace
}  // namespace ovq::ops::test
