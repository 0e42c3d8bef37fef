#include "tests/core/compare.h"

#include <limits>
#include <vector>

namespace ovq::kernels::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<double> kTruth{1.0, -2.0, 0.5};
const std::vector<float> kPlain{1.0f, -2.001f, 0.5f};

TEST(Calibrated, AllowsTwiceTheErrorOfThePlainLoop) {
  EXPECT_TRUE(calibrated({.actual = std::vector{1.0019f, -2.0f, 0.5f}, .plain = kPlain, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = std::vector{1.0021f, -2.0f, 0.5f}, .plain = kPlain, .truth = kTruth}));
}

TEST(Calibrated, AllowsTheFloorWhereThePlainLoopIsExact) {
  const std::vector<float> exact{1.0f, -2.0f, 0.5f};
  EXPECT_TRUE(calibrated({.actual = std::vector{1.000001f, -2.0f, 0.5f}, .plain = exact, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = std::vector{1.00001f, -2.0f, 0.5f}, .plain = exact, .truth = kTruth}));
}

TEST(Calibrated, FloorFollowsTheMagnitude) {
  const std::vector<double> zero{0.0};
  const std::vector<float> exact{0.0f}, actual{5e-5f};
  EXPECT_FALSE(calibrated({.actual = actual, .plain = exact, .truth = zero, .magnitude = 1}));
  EXPECT_TRUE(calibrated({.actual = actual, .plain = exact, .truth = zero, .magnitude = 100}));
}

TEST(Calibrated, NanFails) {
  EXPECT_FALSE(calibrated({.actual = std::vector{1.0f, kNan, 0.5f}, .plain = kPlain, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = kPlain, .plain = std::vector{kNan, -2.0f, 0.5f}, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = kPlain, .plain = kPlain, .truth = std::vector<double>{1.0, -2.0, kNan}}));
  EXPECT_FALSE(calibrated(
      {.actual = std::vector(3, kNan), .plain = std::vector(3, kNan), .truth = std::vector<double>(3, kNan)}));
}

TEST(Calibrated, InfinityFails) {
  EXPECT_FALSE(calibrated({.actual = std::vector{kInfinity, -2.0f, 0.5f}, .plain = kPlain, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = kPlain, .plain = std::vector{1.0f, -kInfinity, 0.5f}, .truth = kTruth}));
  EXPECT_FALSE(calibrated(
      {.actual = std::vector{kInfinity}, .plain = std::vector{kInfinity}, .truth = std::vector<double>{kInfinity}}));
}

TEST(Calibrated, WrongSizeFails) {
  EXPECT_FALSE(calibrated({.actual = std::vector{1.0f, -2.0f}, .plain = kPlain, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = kPlain, .plain = std::vector{1.0f}, .truth = kTruth}));
  EXPECT_FALSE(calibrated({.actual = {}, .plain = {}, .truth = kTruth}));
  EXPECT_TRUE(calibrated({.actual = {}, .plain = {}, .truth = {}}));
}

TEST(CloseTo, BoundsTheError) {
  const auto close = [](std::vector<double> actual) {
    return close_to(std::span<const double>(actual), std::span<const double>(kTruth), 1e-3);
  };
  EXPECT_TRUE(close({1.0019, -2.0, 0.5}));
  EXPECT_FALSE(close({1.0021, -2.0, 0.5}));
  EXPECT_FALSE(close({1.0, kNan, 0.5}));
  EXPECT_FALSE(close({1.0, -kInfinity, 0.5}));
  EXPECT_FALSE(close({1.0, -2.0}));
}

TEST(SameBits, ComparesBytes) {
  EXPECT_TRUE(same_bits(std::vector{1.0f, kNan}, std::vector{1.0f, kNan}));
  EXPECT_FALSE(same_bits(std::vector{0.0f}, std::vector{-0.0f}));
  EXPECT_FALSE(same_bits(std::vector{1.0f}, std::vector{std::nextafter(1.0f, 2.0f)}));
  EXPECT_FALSE(same_bits(std::vector{1.0f}, std::vector{1.0f, 2.0f}));
  EXPECT_TRUE(same_bits(std::vector<float>{}, std::vector<float>{}));
}

}  // namespace
}  // namespace ovq::kernels::test
