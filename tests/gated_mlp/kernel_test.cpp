// The gate, forward and backward, against the plain loops.
#include "ovq/ops/gated_mlp/gate.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ovq/ops/gated_mlp/reference.h"
#include "tests/core/matrices.h"

namespace ovq::kernels::test {
namespace {

using GateKernels = OnIsa;
OVQ_ON_EVERY_ISA(GateKernels);

TEST_P(GateKernels, ForwardAndBackward) {
  for (const int64_t rows : {0, 1, 2, 15, 16, 17, 40}) {
    for (const int64_t width : kDims) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << width);
      Random random(static_cast<uint64_t>(rows * 1000 + width));
      const Tensor gate_up = random_tensor({1, rows, 1, 2 * width}, Layout::dense, random);
      const Tensor d_a = random_tensor({1, rows, 1, width}, Layout::dense, random), both = d_a;
      const Tensor a({1, rows, 1, width}), d_gate_up({1, rows, 1, 2 * width});
      gate_forward(span(gate_up), width, span(a));
      gate_backward(span(gate_up), width, span(both), span(d_gate_up));
      for (const Tensor* x : {&a, &both, &d_gate_up}) EXPECT_TRUE(x->fences_intact());
      EXPECT_TRUE(same_bits(both.values(), a.values()));
      const auto with = [&](auto scalar) {
        using Scalar = decltype(scalar);
        return std::vector{reference::gate(matrix<Scalar>(gate_up)).data,
                           reference::gate_backward(matrix<Scalar>(gate_up), matrix<Scalar>(d_a)).data};
      };
      const auto plain = with(float{});
      const auto truth = with(double{});
      EXPECT_TRUE(calibrated({.actual = a.values(), .plain = plain[0], .truth = truth[0], .magnitude = 1}));
      EXPECT_TRUE(calibrated({.actual = d_gate_up.values(), .plain = plain[1], .truth = truth[1], .magnitude = 1}));
    }
  }
}

TEST_P(GateKernels, LargeInputsAndNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate_up = {90, -90, 1e15f, -1e15f, kNan, 1, 1, 1, 1, 1};
  std::vector<float> a(5);
  gate_forward(gate_up, 5, a);
  EXPECT_FLOAT_EQ(a[0], 90);
  EXPECT_NEAR(a[1], 0, 1e-30);
  EXPECT_FLOAT_EQ(a[2], 1e15f);
  EXPECT_NEAR(a[3], 0, 1e-30);
  EXPECT_TRUE(std::isnan(a[4]));
}

TEST(GateErrors, NameTheArgument) {
  std::vector<float> gate_up(8), a(4);
  EXPECT_NO_THROW(gate_forward(gate_up, 2, a));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("gate_up", [&] { gate_forward(gate_up, 3, a); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("a", [&] { gate_forward(gate_up, 2, gate_up); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("d_gate_up", [&] { gate_backward(gate_up, 2, a, a); }));
}

}  // namespace
}  // namespace ovq::kernels::test
