// Comparisons of tensors and gradients against central differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ovq/ops/torch/torch.h"
#include "tests/core/compare.h"

namespace ovq::ops::test {

using at::Tensor;

inline const auto kDouble = at::TensorOptions().dtype(at::kDouble);

// The message of the std::invalid_argument that `make` throws.
inline std::string message_of(const std::function<void()>& make) {
  try {
    make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing thrown";
}

inline std::vector<double> doubles(const Tensor& x) {
  const Tensor dense = x.detach().to(at::kDouble).contiguous();
  return {dense.data_ptr<double>(), dense.data_ptr<double>() + dense.numel()};
}

// |actual - expected| <= tolerance * max(1, max |expected|). Shapes must agree; NaN and infinities fail.
inline testing::AssertionResult close(const Tensor& actual, const Tensor& expected, double tolerance) {
  if (!actual.defined() || !expected.defined()) return testing::AssertionFailure() << "undefined tensor";
  if (actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << "shape " << actual.sizes() << "; expected " << expected.sizes();
  }
  return kernels::test::close_to<double>(doubles(actual), doubles(expected), tolerance);
}

// By the rule of ovq/base/calibration.h, with a magnitude of at least 1: `actual` is as good as the plain path.
inline testing::AssertionResult calibrated(const Tensor& actual, const Tensor& plain, const Tensor& truth,
                                           double floor = 2e-6) {
  if (actual.sizes() != truth.sizes() || plain.sizes() != truth.sizes()) {
    return testing::AssertionFailure() << "shapes " << actual.sizes() << ", " << plain.sizes() << "; expected "
                                       << truth.sizes();
  }
  const std::vector<double> a = doubles(actual), p = doubles(plain), t = doubles(truth);
  Calibration calibration(1, floor);
  for (size_t i = 0; i < t.size(); ++i) calibration.add(a[i], p[i], t[i]);
  return kernels::test::holds(calibration);
}

// A substitute for a loss: every element of every output counts, each with a different fixed factor. Summed in double.
inline Tensor weighted_sum(const std::vector<Tensor>& outputs) {
  Tensor sum = at::zeros({}, kDouble);
  for (const Tensor& x : outputs) {
    sum = sum + (x.to(at::kDouble) * at::arange(x.numel(), kDouble).mul(0.7).cos().view_as(x)).sum();
  }
  return sum;
}

struct Named {
  std::string name;
  Tensor tensor;
};

// Of expect_gradients in float32: rounding of the outputs, and the fourth derivative, weigh about the same.
inline constexpr double kFloatGradients = 5e-3, kFloatStep = 5e-3;

// Compares the gradients of weighted_sum(function()) by autograd with central differences of fourth order along a few
// random directions of each input, which involve every element. The inputs are leaves that `function` reads; they are
// changed in place and restored. A missing gradient counts as zeros. Where a discrete choice changes along a direction,
// differences over one step and over two disagree; another one is drawn then.
inline void expect_gradients(const std::vector<Named>& inputs, const std::function<std::vector<Tensor>()>& function,
                             double tolerance = 1e-7, double step = 1e-4) {
  constexpr int kDirections = 4, kMostDrawn = 16;
  std::vector<Tensor> leaves;
  for (const Named& input : inputs) leaves.push_back(input.tensor.requires_grad_(true));
  const auto gradients = torch::autograd::grad({weighted_sum(function())}, leaves, {}, false, false, true);
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor value = leaves[i].detach(), original = value.clone();
    const Tensor gradient = gradients[i].defined() ? gradients[i] : at::zeros_like(original);
    ASSERT_EQ(gradient.sizes(), original.sizes()) << "gradient of " << inputs[i].name;
    int checked = 0;
    for (int drawn = 0; drawn < kMostDrawn && checked < kDirections; ++drawn) {
      const Tensor random = at::randn_like(original), along = random / random.norm();
      const auto at = [&](double distance) {
        value.copy_(original + distance * along);
        return weighted_sum(function()).item<double>();
      };
      const double near = (at(step) - at(-step)) / (2 * step), far = (at(2 * step) - at(-2 * step)) / (4 * step);
      value.copy_(original);
      const Tensor numeric = at::scalar_tensor((4 * near - far) / 3, kDouble);
      const auto result = close((gradient * along).sum(), numeric, tolerance);
      if (!result && !(std::abs(near - far) <= 0.5 * tolerance * std::max(1.0, std::abs(near)))) continue;
      EXPECT_TRUE(result) << "gradient of " << inputs[i].name;
      ++checked;
    }
    EXPECT_EQ(checked, kDirections) << "too few directions without a discrete choice; gradient of " << inputs[i].name;
  }
}

}  // namespace ovq::ops::test
