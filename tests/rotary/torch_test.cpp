#include "ovq/ops/rotary/torch.h"

#include "tests/ops/formula_checks.h"

namespace ovq::ops::test {
namespace {

TEST(Rotary, DotProductsDependOnDistanceAlone) {
  torch::manual_seed(5);
  const Tensor q = at::randn({1, 1, 2, 8}), k = at::randn({1, 1, 2, 8});
  const auto product = [&](int64_t at_q, int64_t at_k) {
    return (rotary(q, {.first_position = at_q}) * rotary(k, {.first_position = at_k})).sum();
  };
  for (const int64_t shift : {1, 100, 1'000'000}) {
    EXPECT_TRUE(close(product(7 + shift, 2 + shift), product(7, 2), 2e-6)) << "shift " << shift;
  }
  EXPECT_FALSE(close(product(8, 2), product(7, 2), 1e-3));
  EXPECT_TRUE(close(rotary(q, {}), q, 0));
}

// By the formula: pair (i, i + D/2) turns by p base^(-2 i / D).
OpCall formula(double base, int64_t first_position) {
  return [=](const std::vector<Tensor>& in) {
    const int64_t half = in[0].size(3) / 2;
    const Tensor positions = at::arange(first_position, first_position + in[0].size(1), kDouble);
    const Tensor frequencies = at::pow(base, at::arange(half, kDouble) / -static_cast<double>(half));
    const Tensor angles = (positions.unsqueeze(1) * frequencies).unsqueeze(1);
    const Tensor cosines = angles.cos().to(in[0].scalar_type()), sines = angles.sin().to(in[0].scalar_type());
    const Tensor a = in[0].narrow(3, 0, half), b = in[0].narrow(3, half, half);
    return std::vector{at::cat({a * cosines - b * sines, a * sines + b * cosines}, 3)};
  };
}

OpCall call(double base, int64_t first_position) {
  return [=](const std::vector<Tensor>& in) {
    return std::vector{rotary(in[0], {.base = base, .first_position = first_position})};
  };
}

TEST(Rotary, IsAsGoodAsTheFormula) {
  torch::manual_seed(6);
  for (const int64_t time : {1, 5, 8, 9, 100}) {  // up to 8 tokens have angles of their own
    for (const int64_t dim : {2, 6, 64}) {
      const Tensor x = at::randn({2, time, 3, dim}, kDouble);
      expect_as_good_as_formula(call(100, 3), formula(100, 3), {x});
      expect_as_good_as_formula(call(10000, 12345), formula(10000, 12345), {x});
    }
  }
  const Tensor x = at::randn({2, 5, 3, 6});
  EXPECT_TRUE(close(rotary(x.transpose(1, 2), {}), rotary(x.transpose(1, 2).contiguous(), {}), 0));
  EXPECT_THROW(rotary(at::ones({1, 1, 1, 3}), {}), std::invalid_argument);
  EXPECT_THROW(rotary(at::ones({1, 4, 4}), {}), std::invalid_argument);
}

TEST(Rotary, ConvertsHalves) {
  torch::manual_seed(7);
  const Tensor x = at::randn({2, 11, 3, 4});
  expect_conversions("rotary", call(10000, 2), {x});
  expect_no_second_derivative("rotary", call(10000, 2), {x});
}

TEST(Rotary, PackedSequencesStartAgain) {
  torch::manual_seed(7);
  const Tensor x = at::randn({1, 20, 2, 4});
  const Tensor y = rotary(x, {.cu_seqlens = at::tensor({0, 1, 1, 9, 20})});
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 9}, {9, 20}}) {
    EXPECT_TRUE(close(y.slice(1, begin, end), rotary(x.slice(1, begin, end), {}), 1e-6));
  }
  EXPECT_THROW(rotary(x, {.cu_seqlens = at::tensor({0, 19})}), std::invalid_argument);
}

TEST(Rotary, NoTokens) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 0, 3, 4}, {0, 5, 3, 4}, {2, 5, 3, 0}}) {
    EXPECT_EQ(outputs_and_gradients(call(100, 0), {at::zeros(shape)}, at::kFloat)[1].sizes(), at::IntArrayRef(shape));
  }
}

}  // namespace
}  // namespace ovq::ops::test
