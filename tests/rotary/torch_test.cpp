#include "ovq/ops/rotary/torch.h"

#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

TEST(Rotary, DotProductsDependOnDistanceAlone) {
  torch::manual_seed(5);
  const Tensor q = at::randn({1, 1, 2, 8}, kDouble), k = at::randn({1, 1, 2, 8}, kDouble);
  const auto product = [&](int64_t at_q, int64_t at_k) {
    return (rotary(q, {.first_position = at_q}) * rotary(k, {.first_position = at_k})).sum();
  };
  for (const int64_t shift : {1, 100, 1'000'000}) {
    EXPECT_TRUE(close(product(7 + shift, 2 + shift), product(7, 2), 1e-8)) << "shift " << shift;
  }
  EXPECT_FALSE(close(product(8, 2), product(7, 2), 1e-3));
  EXPECT_TRUE(close(rotary(q, {}), q, 0));
}

// By the formula: pair (i, i + D/2) turns by p base^(-2 i / D).
TEST(Rotary, EqualsFormula) {
  torch::manual_seed(6);
  const Tensor x = at::randn({2, 5, 3, 6}, kDouble), y = rotary(x, {.base = 100, .first_position = 3});
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = static_cast<double>(t + 3) * std::pow(100, -2.0 * static_cast<double>(i) / 6);
      const Tensor a = x.select(1, t).select(-1, i), b = x.select(1, t).select(-1, i + 3);
      EXPECT_TRUE(close(y.select(1, t).select(-1, i), a * std::cos(angle) - b * std::sin(angle), 1e-12));
      EXPECT_TRUE(close(y.select(1, t).select(-1, i + 3), a * std::sin(angle) + b * std::cos(angle), 1e-12));
    }
  }
  EXPECT_TRUE(close(rotary(x.to(at::kFloat), {.base = 100, .first_position = 3}), y, 1e-6));
  EXPECT_TRUE(close(rotary(x.transpose(1, 2), {}), rotary(x.transpose(1, 2).contiguous(), {}), 0));
  EXPECT_THROW(rotary(at::ones({1, 1, 1, 3}), {}), std::invalid_argument);
  EXPECT_THROW(rotary(at::ones({1, 4, 4}), {}), std::invalid_argument);
}

TEST(Rotary, PackedSequencesStartAgain) {
  torch::manual_seed(7);
  const Tensor x = at::randn({1, 20, 2, 4}, kDouble);
  const Tensor y = rotary(x, {.cu_seqlens = at::tensor({0, 1, 1, 9, 20})});
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 9}, {9, 20}}) {
    EXPECT_TRUE(close(y.slice(1, begin, end), rotary(x.slice(1, begin, end), {}), 1e-12));
  }
  EXPECT_THROW(rotary(x, {.cu_seqlens = at::tensor({0, 19})}), std::invalid_argument);
}

TEST(Rotary, Gradients) {
  torch::manual_seed(8);
  Tensor x = at::randn({1, 3, 2, 4}, kDouble);
  expect_gradients({{"x", x}}, [&] { return std::vector{rotary(x, {.first_position = 2})}; });
}

}  // namespace
}  // namespace ovq::ops::test
