#include "ovq/base/closest.h"

#include <gtest/gtest.h>

namespace ovq {
namespace {

TEST(Closest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("recall", "reclal"), 1);  // two letters swapped
  EXPECT_EQ(edit_distance("recall", "recall"), 0);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);
}

TEST(Closest, Names) {
  const std::vector<std::string> names = {"recall", "positional-recall", "icl", "text"};
  EXPECT_EQ(closest_names("recal", names), (std::vector<std::string>{"recall"}));
  EXPECT_EQ(closest_names("positional", names), (std::vector<std::string>{"positional-recall"}));
  EXPECT_EQ(closest_names("--keep", {"--help", "--keep-last"}), (std::vector<std::string>{"--keep-last", "--help"}));
  EXPECT_EQ(closest_names("ilc", names), (std::vector<std::string>{"icl"}));
  EXPECT_TRUE(closest_names("banana", names).empty());
  EXPECT_TRUE(closest_names("", names).empty());
  EXPECT_EQ(closest_names("aa", {"ab", "aa", "ac"}, 2), (std::vector<std::string>{"aa", "ab"}));
}

TEST(Closest, OfManyNamesTheNearestFive) {
  std::vector<std::string> names;
  for (char c = 'a'; c <= 'z'; ++c) names.push_back(std::string(9, c));
  names.push_back("abcdwxyz");
  EXPECT_EQ(unknown_name("preset", "abcdefgh", names),
            "unknown preset \"abcdefgh\"; the nearest of 27 are abcdwxyz, aaaaaaaaa, bbbbbbbbb, ccccccccc, ddddddddd");
}

}  // namespace
}  // namespace ovq
