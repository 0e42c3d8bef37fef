// On an ARM64 CPU that has NEON but neither AES nor SVE, such as that of the Raspberry Pi 4, every kernel runs on NEON.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>

#include <string>
#include <vector>

#include "ovq/core/isa.h"
#include "ovq/ops/attention/attention.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/products/matvec.h"
#include "ovq/ops/recurrence/kernel.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/short_convolution/short_convolution.h"

// Highway asks the system with this.
extern "C" unsigned long getauxval(unsigned long type) noexcept {
  static const auto real = reinterpret_cast<unsigned long (*)(unsigned long)>(dlsym(RTLD_NEXT, "getauxval"));
  if (type == AT_HWCAP) return HWCAP_FP | HWCAP_ASIMD;
  return type == AT_HWCAP2 ? 0 : real(type);
}

namespace ovq::kernels::test {
namespace {

TEST(PlainArm, HasNeonOnly) {
  EXPECT_EQ(available_isas(), std::vector<std::string>{"NEON"});
  EXPECT_STREQ(detail::read_kernels().isa, "NEON");
  EXPECT_STREQ(detail::row_kernels().isa, "NEON");
  EXPECT_STREQ(recurrence::recurrence_kernels().isa, "NEON");
}

TEST(PlainArm, KernelsRun) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8}, weight = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, -1};
  const StoredMatrix stored = {.wide = weight.data(), .outputs = 2, .stride = 8};
  std::vector<float> y(2);
  matvec({.x = x.data(), .x_stride = 8, .rows = 1, .depth = 8, .weights = std::span(&stored, 1)}, y.data(), 2);
  EXPECT_EQ(y, (std::vector<float>{10, 2}));

  const std::vector<float> taps = {1, 10};
  std::vector<float> convolved(8);
  short_convolution_forward({.x = View<const float>::contiguous(x.data(), 1, 8, 1, 1), .taps = taps},
                            View<float>::contiguous(convolved.data(), 1, 8, 1, 1));
  EXPECT_EQ(convolved, (std::vector<float>{10, 21, 32, 43, 54, 65, 76, 87}));

  // A window of one token: each reads its own value.
  const auto tokens = View<const float>::contiguous(x.data(), 1, 4, 1, 2);
  const std::vector<float> beta = {1};
  std::vector<float> o(8);
  attention_forward({.q = tokens, .k = tokens, .v = tokens, .beta = beta, .window = 1},
                    {.o = View<float>::contiguous(o.data(), 1, 4, 1, 2)});
  EXPECT_EQ(o, x);
}

}  // namespace
}  // namespace ovq::kernels::test
