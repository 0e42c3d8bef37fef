// Positions of values on an axis, its ticks, and number formats.
#include "ovq/plot/axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace ovq::plot {
namespace {

std::vector<std::string> tick_texts(const Axis& axis, double low, double high) {
  const Scale scale(axis, low, high);
  std::vector<std::string> texts;
  for (const Tick& tick : scale.ticks()) texts.push_back(tick.text);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Axis, LinearTicksAreRound) {
  EXPECT_EQ(tick_texts({}, 0, 1), (Texts{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
  EXPECT_EQ(tick_texts({}, 0.13, 0.87), (Texts{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
  EXPECT_EQ(tick_texts({}, -30, 470), (Texts{"-100", "0", "100", "200", "300", "400", "500"}));
  EXPECT_EQ(tick_texts({.from = 0.5, .to = 1}, 0, 2), (Texts{"0.5", "0.6", "0.7", "0.8", "0.9", "1"}));
}

TEST(Axis, PowersOfTwoAreThoseThatAreThere) {
  const Axis tokens{.spacing = Spacing::log2, .numbers = Numbers::tokens};
  EXPECT_EQ(tick_texts(tokens, 512, 8192), (Texts{"512", "1k", "2k", "4k", "8k"}));
  EXPECT_EQ(tick_texts(tokens, 500, 3000), (Texts{"512", "1k", "2k"}));
  EXPECT_EQ(tick_texts(tokens, 1, 1 << 20), (Texts{"1", "8", "64", "512", "4k", "32k", "256k"}));
  const Scale scale(tokens, 512, 8192);
  EXPECT_EQ(scale.low(), 512);  // no margin without values
  EXPECT_EQ(scale.high(), 8192);
}

TEST(Axis, DecadesAreWhole) {
  const Axis flops{.spacing = Spacing::log10, .numbers = Numbers::si};
  EXPECT_EQ(tick_texts(flops, 3e3, 2e6), (Texts{"1k", "10k", "100k", "1M", "10M"}));
  EXPECT_EQ(tick_texts(flops, 12, 70), (Texts{"10", "20", "50", "100"}));
}

TEST(Axis, PositionsFollowTheSpacing) {
  const Scale linear({}, 0, 10), two({.spacing = Spacing::log2}, 1, 16), ten({.spacing = Spacing::log10}, 1, 100);
  EXPECT_DOUBLE_EQ(linear.at(2.5), 0.25);
  EXPECT_DOUBLE_EQ(two.at(2), 0.25);
  EXPECT_DOUBLE_EQ(ten.at(10), 0.5);
  for (const Scale* scale : {&linear, &two, &ten}) {
    EXPECT_DOUBLE_EQ(scale->at(scale->low()), 0);
    EXPECT_DOUBLE_EQ(scale->at(scale->high()), 1);
    EXPECT_TRUE(scale->contains(scale->high()));
    EXPECT_FALSE(scale->contains(scale->high() * 1.01));
    EXPECT_FALSE(scale->contains(-1));
    EXPECT_FALSE(scale->contains(std::nan("")));
  }
}

TEST(Axis, OneValueHasRoomAroundIt) {
  for (const Spacing spacing : {Spacing::linear, Spacing::log2, Spacing::log10}) {
    const Scale scale({.spacing = spacing}, 8, 8);
    EXPECT_LT(scale.low(), scale.high());
    EXPECT_TRUE(scale.contains(8));
    EXPECT_FALSE(scale.ticks().empty());
  }
  EXPECT_TRUE(Scale({.from = 0}, -3, -2).contains(0));  // all values lie outside
}

TEST(Axis, BoundsThatMakeNoSenseAreErrors) {
  EXPECT_THROW(Scale({.spacing = Spacing::log2, .from = 0}, 1, 2), std::invalid_argument);
  EXPECT_THROW(Scale({.from = 2, .to = 1}, 1, 2), std::invalid_argument);
  EXPECT_THROW(Scale({.from = 2, .to = 2}, 1, 2), std::invalid_argument);
}

TEST(Axis, NumbersAsPeopleReadThem) {
  EXPECT_EQ(tick_text(Numbers::tokens, 65536), "64k");
  EXPECT_EQ(tick_text(Numbers::tokens, 1 << 20), "1M");
  EXPECT_EQ(tick_text(Numbers::tokens, 100), "100");
  EXPECT_EQ(tick_text(Numbers::si, 2.5e9), "2.5G");
  EXPECT_EQ(tick_text(Numbers::plain, 0.30000000000000004), "0.3");
  EXPECT_EQ(tick_text(Numbers::seconds, 0.02), "20 ms");
  EXPECT_EQ(value_text(Numbers::tokens, 8192), "8,192");
  EXPECT_EQ(value_text(Numbers::tokens, 512), "512");
  EXPECT_EQ(value_text(Numbers::plain, 0.99876), "0.999");
  EXPECT_EQ(value_text(Numbers::plain, 0.00001234), "1.23e-05");
  EXPECT_EQ(value_text(Numbers::plain, 1800), "1,800");
  EXPECT_EQ(value_text(Numbers::plain, 0), "0");
  EXPECT_EQ(value_text(Numbers::si, -1234567), "-1.235M");
  EXPECT_EQ(with_deviation(Numbers::plain, 0.99876, 0.00049), "0.999 ± 0.000");
  EXPECT_EQ(with_deviation(Numbers::plain, 1, 0), "1.000 ± 0.000");
  EXPECT_EQ(with_deviation(Numbers::plain, 1800, 2), "1,800 ± 2");
  EXPECT_EQ(with_deviation(Numbers::plain, 1e-5, 1e-6), "1e-05 ± 1e-06");
}

}  // namespace
}  // namespace ovq::plot
