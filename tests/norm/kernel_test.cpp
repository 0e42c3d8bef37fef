// The norms, forward and backward, against the plain loops.
#include "ovq/ops/norm/norm.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/norm/reference.h"
#include "tests/core/matrices.h"

namespace ovq::kernels::test {
namespace {

using NormKernels = OnIsa;
OVQ_ON_EVERY_ISA(NormKernels);

constexpr int64_t kRows[] = {0, 1, 2, 31, 32, 33, 70};

struct NormProblem {
  NormProblem(int64_t rows, int64_t width, float scale) {
    Random random(static_cast<uint64_t>(rows * 1000 + width));
    x = random_tensor({1, rows, 1, width}, Layout::dense, random);
    x.each_row([&](float* row) {
      for (int64_t i = 0; i < width; ++i) row[i] *= scale;
    });
    d_y = random_tensor({1, rows, 1, width}, Layout::dense, random);
    add = random_tensor({1, rows, 1, width}, Layout::dense, random);
    weight = random_tensor({1, 1, 1, width}, Layout::dense, random);
  }
  Tensor x, d_y, add, weight;
};

template <class Scalar>
std::vector<Scalar> plus(std::vector<Scalar> values, const std::vector<Scalar>& more) {
  for (size_t i = 0; i < values.size(); ++i) values[i] += more[i];
  return values;
}

void expect_rms_norm(int64_t rows, int64_t width, int64_t groups, float scale) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << width << ", groups " << groups << ", scale " << scale);
  const NormProblem p(rows, width, scale);
  constexpr float kEps = 1e-6f;
  const RmsNormInputs in{.x = span(p.x), .weight = span(p.weight), .groups = groups, .eps = kEps};
  const Tensor y({1, rows, 1, width}), r({1, rows, 1, groups}), d_x({1, rows, 1, width}), d_x_plus({1, rows, 1, width});
  const Tensor d_weight({1, rms_norm_sums(rows), 1, width});
  rms_norm_forward(in, span(y), span(r));
  rms_norm_backward(in, span(p.d_y), span(r), {.d_x = span(d_x), .d_weight = span(d_weight)});
  std::vector<float> d_w(static_cast<size_t>(width));
  for (int64_t sum = 0; sum < rms_norm_sums(rows); ++sum) {
    for (int64_t i = 0; i < width; ++i) d_w[i] += d_weight.row(0, sum, 0)[i];
  }
  rms_norm_backward(in, span(p.d_y), span(r), {.d_x = span(d_x_plus), .d_weight = span(d_weight), .add = span(p.add)});
  for (const Tensor* x : {&y, &r, &d_x, &d_x_plus, &d_weight}) EXPECT_TRUE(x->fences_intact());
  const auto with = [&](auto scalar) {
    using Scalar = decltype(scalar);
    const auto x = matrix<Scalar>(p.x), weight = matrix<Scalar>(p.weight), d_y = matrix<Scalar>(p.d_y);
    const auto gradients = reference::rms_norm_backward<Scalar>(d_y, x, weight, groups, kEps);
    return std::vector{reference::rms_norm<Scalar>(x, weight, groups, kEps).data, gradients.d_x.data,
                       gradients.d_weight.data, plus(gradients.d_x.data, matrix<Scalar>(p.add).data)};
  };
  const auto plain = with(float{});
  const auto truth = with(double{});
  const std::vector<std::vector<float>> actual = {y.values(), d_x.values(), d_w, d_x_plus.values()};
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_TRUE(calibrated({.actual = actual[i], .plain = plain[i], .truth = truth[i], .magnitude = 1}))
        << "result " << i;
  }
}

TEST_P(NormKernels, RmsNorm) {
  for (const int64_t rows : kRows) {
    for (const int64_t width : kDims) {
      for (const float scale : {1.0f, 1e-3f}) expect_rms_norm(rows, width, 1, scale);  // the eps counts in the second
    }
    for (const int64_t groups : {2, 3, 6}) expect_rms_norm(rows, 6 * 17, groups, 1.0f);
  }
}

TEST_P(NormKernels, L2Norm) {
  for (const int64_t rows : kRows) {
    for (const int64_t width : kDims) {
      for (const float scale : {1.0f, 1e-3f}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << width << ", scale " << scale);
        const NormProblem p(rows, width, scale);
        const Tensor y({1, rows, 1, width}), r({1, rows, 1, 1}), d_x({1, rows, 1, width});
        l2_norm_forward(span(p.x), width, 1e-6f, span(y), span(r));
        l2_norm_backward(span(p.d_y), span(y), span(r), width, span(d_x));
        for (const Tensor* x : {&y, &r, &d_x}) EXPECT_TRUE(x->fences_intact());
        const auto with = [&](auto scalar) {
          using Scalar = decltype(scalar);
          return std::vector{
              reference::l2_norm<Scalar>(matrix<Scalar>(p.x), 1e-6f).data,
              reference::l2_norm_backward<Scalar>(matrix<Scalar>(p.d_y), matrix<Scalar>(p.x), 1e-6f).data};
        };
        const auto plain = with(float{});
        const auto truth = with(double{});
        EXPECT_TRUE(calibrated({.actual = y.values(), .plain = plain[0], .truth = truth[0]}));
        // y . d_y cancels against d_y, whose size a norm of 1e-3 multiplies by a thousand.
        EXPECT_TRUE(calibrated({.actual = d_x.values(), .plain = plain[1], .truth = truth[1], .magnitude = 1 / scale}));
      }
    }
  }
}

TEST_P(NormKernels, NotANumberStaysInItsRow) {
  NormProblem p(3, 20, 1.0f);
  p.x.row(0, 1, 0)[19] = std::numeric_limits<float>::quiet_NaN();
  const Tensor y({1, 3, 1, 20}), r({1, 3, 1, 1});
  rms_norm_forward({.x = span(p.x), .weight = span(p.weight), .eps = 1e-6f}, span(y), span(r));
  const std::vector<float> values = y.values();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i >= 20 && i < 40);
}

TEST(NormErrors, NameTheArgument) {
  std::vector<float> x(12), weight(4), y(12), r(3), sums(4);
  const RmsNormInputs in{.x = x, .weight = weight};
  const auto named = [](const std::string& name, const auto& call) {
    return throws_naming<std::invalid_argument>(name, call);
  };
  EXPECT_NO_THROW(rms_norm_forward(in, y, r));
  EXPECT_TRUE(named("weight", [&] { rms_norm_forward({.x = x}, y, r); }));
  EXPECT_TRUE(named("x", [&] { rms_norm_forward({.x = std::span(x).first(11), .weight = weight}, y, r); }));
  EXPECT_TRUE(named("groups", [&] { rms_norm_forward({.x = x, .weight = weight, .groups = 3}, y, r); }));
  EXPECT_TRUE(named("y", [&] { rms_norm_forward(in, std::span(y).first(8), r); }));
  EXPECT_TRUE(named("r", [&] { rms_norm_forward(in, y, std::span(r).first(2)); }));
  EXPECT_TRUE(named("d_weight", [&] { rms_norm_backward(in, y, r, {.d_x = x, .d_weight = {}}); }));
  EXPECT_TRUE(named("x", [&] { l2_norm_forward(x, 5, 0, y, r); }));
  EXPECT_TRUE(named("d_x", [&] { l2_norm_backward(y, y, r, 4, sums); }));
}

}  // namespace
}  // namespace ovq::kernels::test
