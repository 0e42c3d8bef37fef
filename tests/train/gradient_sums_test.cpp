#include "ovq/train/gradient_sums.h"

#include <gtest/gtest.h>

namespace ovq::train {
namespace {

// The sum of the parts' gradients, each a single number; empty for parts without a gradient.
std::optional<float> sum_of(const std::vector<std::optional<float>>& parts) {
  at::Tensor parameter = torch::zeros({1}, at::requires_grad());
  GradientSums sums({parameter});
  for (const auto& part : parts) {
    if (part) parameter.mutable_grad() = at::full({1}, *part);
    sums.end_part();
    EXPECT_FALSE(parameter.grad().defined());
  }
  sums.finish();
  if (!parameter.grad().defined()) return std::nullopt;
  return parameter.grad().item<float>();
}

TEST(GradientSums, AreMadeInPairs) {
  const float one = 1, small = 0x1p-24F;  // 1 + small is 1, 1 + (small + small) is not
  EXPECT_EQ(sum_of({one}), one);
  EXPECT_EQ(sum_of({one, small}), one);
  EXPECT_EQ(sum_of({one, small, small, small}), one + 2 * small);
  EXPECT_EQ(sum_of({one, small, small}), one);
  EXPECT_EQ(sum_of({small, small, small, small, one, small, small, small}), 4 * small + (one + 2 * small));
}

TEST(GradientSums, PartsMayHaveNone) {
  EXPECT_EQ(sum_of({std::nullopt, 2.0F, std::nullopt, 3.0F}), 5.0F);
  EXPECT_EQ(sum_of({2.0F, std::nullopt, std::nullopt}), 2.0F);
  EXPECT_EQ(sum_of({std::nullopt, std::nullopt}), std::nullopt);
  EXPECT_EQ(sum_of({}), std::nullopt);
}

TEST(GradientSums, WithoutPartsGradientsStay) {
  at::Tensor parameter = torch::zeros({1}, at::requires_grad());
  parameter.mutable_grad() = at::full({1}, 7.0F);
  GradientSums sums({parameter});
  sums.finish();
  EXPECT_EQ(parameter.grad().item<float>(), 7);
}

}  // namespace
}  // namespace ovq::train
