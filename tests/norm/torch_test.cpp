#include "ovq/ops/norm/torch.h"

#include "tests/ops/formula_checks.h"

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

Tensor rms_norm_formula(const Tensor& x, const Tensor& weight, int64_t groups = 1) {
  const Tensor parts = x.unflatten(-1, {groups, x.size(-1) / groups});
  return (parts / (parts.square().mean(-1, true) + 1e-6).sqrt()).flatten(-2) * weight;
}

OpCall rms_norm_call(int64_t groups) {
  return [groups](const std::vector<Tensor>& in) { return std::vector{rms_norm(in[0], in[1], 1e-6, groups)}; };
}
OpCall rms_norm_truth(int64_t groups) {
  return [groups](const std::vector<Tensor>& in) { return std::vector{rms_norm_formula(in[0], in[1], groups)}; };
}
std::vector<Tensor> l2_norm_call(const std::vector<Tensor>& in) { return {l2_norm(in[0])}; }
std::vector<Tensor> l2_norm_truth(const std::vector<Tensor>& in) {
  return {in[0] / (in[0].square().sum(-1, true) + 1e-6).sqrt()};
}

// Outputs and gradients; with a scale of 1e-3 the eps counts.
TEST(RmsNorm, IsAsGoodAsTheFormula) {
  torch::manual_seed(1);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1}, {5, 7}, {2, 65, 33}, {3, 1, 4, 128}}) {
    for (const double scale : {1.0, 1e-3}) {
      const Tensor x = at::randn(shape, kDouble) * scale, weight = at::randn({shape.back()}, kDouble);
      expect_as_good_as_formula(rms_norm_call(1), rms_norm_truth(1), {x, weight});
      expect_as_good_as_formula(l2_norm_call, l2_norm_truth, {x});
    }
  }
  EXPECT_THROW(rms_norm(at::ones({2, 8}), at::ones({7})), std::invalid_argument);
}

TEST(RmsNorm, GroupsAreAsGoodAsTheFormula) {
  torch::manual_seed(2);
  for (const int64_t groups : {1, 2, 3, 6}) {
    const Tensor x = at::randn({5, 70, 24}, kDouble) * at::arange(1, 25, kDouble), weight = at::randn({24}, kDouble);
    expect_as_good_as_formula(rms_norm_call(groups), rms_norm_truth(groups), {x, weight});
  }
}

TEST(RmsNorm, StridedInputs) {
  torch::manual_seed(3);
  const Tensor x = at::randn({6, 4, 8}).transpose(0, 1), weight = at::randn({16}).slice(0, 0, 16, 2);
  EXPECT_TRUE(close(rms_norm(x, weight), rms_norm(x.contiguous(), weight.contiguous()), 0));
  EXPECT_TRUE(close(l2_norm(x), l2_norm(x.contiguous()), 0));
}

TEST(RmsNorm, ConvertsHalves) {
  torch::manual_seed(4);
  const std::vector<Tensor> in = {at::randn({3, 5, 12}), at::randn({12})};
  expect_conversions("rms_norm", rms_norm_call(1), in);
  expect_conversions("rms_norm", rms_norm_call(3), in);
  expect_conversions("l2_norm", l2_norm_call, {in[0]});
  expect_no_second_derivative("rms_norm", rms_norm_call(1), in);
  expect_no_second_derivative("l2_norm", l2_norm_call, {in[0]});
}

TEST(RmsNorm, NoRows) {
  const auto results = outputs_and_gradients(rms_norm_call(1), {at::zeros({0, 8}), at::ones({8})}, at::kFloat);
  EXPECT_EQ(results[0].sizes(), at::IntArrayRef({0, 8}));
  EXPECT_EQ(results[1].sizes(), at::IntArrayRef({0, 8}));
  EXPECT_TRUE(close(results[2], at::zeros({8}), 0));
  EXPECT_EQ(outputs_and_gradients(l2_norm_call, {at::zeros({2, 0, 8})}, at::kFloat)[1].sizes(),
            at::IntArrayRef({2, 0, 8}));
}

TEST(RmsNorm, BadGroups) {
  EXPECT_EQ(message_of([] {
              rms_norm(at::ones({2, 6}), at::ones({6}), 1e-6, 4);
            }),
            "[rms_norm] groups is 4; must divide the last dimension of x, 6");
}

}  // namespace
}  // namespace ovq::ops::test
