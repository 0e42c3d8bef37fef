// The rotation against the plain loops.
#include <gtest/gtest.h>

#include <vector>

#include "ovq/ops/rotary/reference.h"
#include "ovq/ops/rotary/rotary.h"
#include "tests/core/matrices.h"

namespace ovq::kernels::test {
namespace {

TEST(RotaryKernels, TurnForthAndBack) {
  for (const int64_t time : kShortTimes) {
    for (const int64_t dim : {2, 8, 30, 64}) {
      for (const Layout layout : kLayouts) {
        SCOPED_TRACE(testing::Message() << "time " << time << ", dim " << dim);
        Random random(static_cast<uint64_t>(time * 100 + dim));
        const Tensor x = random_tensor({2, time, 3, dim}, layout, random), y({2, time, 3, dim}, layout);
        const Tensor back({2, time, 3, dim}, layout), angles({1, time, 1, dim});
        rotary_angles(1000, time, dim, 10000.0, span(angles));
        rotary(x.view(), span(angles), 1, y.view());
        rotary(y.view(), span(angles), -1, back.view());
        for (const Tensor* one : {&y, &back, &angles}) EXPECT_TRUE(one->fences_intact());
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t h = 0; h < 3; ++h) {
            const auto rows = [&](const Tensor& from) {
              return reference::load<float>(from.view(), b, h, 0, time).data;
            };
            const auto with = [&](auto scalar) {
              using Scalar = decltype(scalar);
              return reference::rotary(reference::load<Scalar>(x.view(), b, h, 0, time), 1000, 10000.0).data;
            };
            const auto plain = with(float{});
            EXPECT_TRUE(calibrated({.actual = rows(y), .plain = plain, .truth = with(double{}), .magnitude = 1}));
            const std::vector<float> first = rows(x), again = rows(back);
            const std::vector<double> truth(first.begin(), first.end());
            EXPECT_TRUE(close_to<float>(again, truth, 1e-6));
          }
        }
      }
    }
  }
}

TEST(RotaryErrors, NameTheArgument) {
  const Tensor x({1, 3, 2, 4}), odd({1, 3, 2, 3});
  std::vector<float> angles(12);
  const auto named = [](const std::string& name, const auto& call) {
    return throws_naming<std::invalid_argument>(name, call);
  };
  EXPECT_NO_THROW(rotary(x.view(), angles, 1, x.view()));
  EXPECT_TRUE(named("x", [&] { rotary(odd.view(), angles, 1, odd.view()); }));
  EXPECT_TRUE(named("y", [&] { rotary(x.view(), angles, 1, odd.view()); }));
  EXPECT_TRUE(named("angles", [&] { rotary(x.view(), std::span(angles).first(8), 1, x.view()); }));
  EXPECT_TRUE(named("dim", [&] { rotary_angles(0, 4, 3, 10000.0, angles); }));
  EXPECT_TRUE(named("angles", [&] { rotary_angles(0, 2, 4, 10000.0, angles); }));
}

}  // namespace
}  // namespace ovq::kernels::test
