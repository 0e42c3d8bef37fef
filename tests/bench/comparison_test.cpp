#include "bench/comparison.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace ovq::bench {
namespace {

constexpr const char* kBefore = R"({"cases": [
    {"name": "a", "seconds_best": 2.0, "seconds_median": 3.0, "rounds": 4},
    {"name": "gone", "seconds_best": 1.0},
    {"name": "nested", "fused": {"seconds_best": 0.5}, "plain": {"seconds_best": 1.0}}]})";

TEST(Comparison, OfTheTimingsThatBothHave) {
  const std::string text = compare_reports("old.json", kBefore, R"({"cases": [
      {"name": "new", "seconds_best": 1.0},
      {"name": "a", "seconds_best": 1.0, "seconds_median": 4.0, "rounds": 9},
      {"name": "nested", "fused": {"seconds_best": 0.1}, "plain": {"seconds_median": 1.0}}]})");
  EXPECT_NE(text.find("compared with old.json"), std::string::npos) << text;
  for (const char* ratio : {"2.00 x", "0.75 x", "5.00 x"}) EXPECT_NE(text.find(ratio), std::string::npos) << text;
  for (const char* name : {"gone", "new", "plain", "rounds"}) EXPECT_EQ(text.find(name), std::string::npos) << text;
}

TEST(Comparison, OfWhatIsNoReport) {
  for (const char* text : {"", "[]", "{}", R"({"cases": [{}]})"}) {
    EXPECT_THROW(compare_reports("x", text, kBefore), std::runtime_error) << text;
  }
}

}  // namespace
}  // namespace ovq::bench
