#include "ovq/base/format.h"

#include <gtest/gtest.h>

namespace ovq {
namespace {

TEST(Format, BytesAreDecimal) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1024), "1.0 kB");
  EXPECT_EQ(bytes_text(1.5e6), "1.5 MB");
  EXPECT_EQ(bytes_text(34e6), "34 MB");
  EXPECT_EQ(bytes_text(2e9), "2.0 GB");
  EXPECT_EQ(bytes_text(3.25e13), "32.5 TB");
}

TEST(Format, Times) {
  EXPECT_EQ(seconds_text(1.2345), "1.234 s");
  EXPECT_EQ(seconds_text(0.00567), "5.67 ms");
  EXPECT_EQ(seconds_text(8.94e-6), "8.9 us");
  EXPECT_EQ(duration_text(41.6), "42 s");
  EXPECT_EQ(duration_text(187), "3:07");
  EXPECT_EQ(duration_text(3723), "1:02:03");
}

TEST(Format, Lists) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"a", "b", "c"}), "a, b, c");
}

TEST(Format, WordsOfAShell) {
  EXPECT_EQ(shell_word("runs/sw-ovq_2.1"), "runs/sw-ovq_2.1");
  EXPECT_EQ(shell_word("my run"), "'my run'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$HOME;ls"), "'$HOME;ls'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace ovq
