#include "ovq/text/utf8.h"

#include <gtest/gtest.h>

namespace ovq::text {
namespace {

const std::string kWhale = "\xf0\x9f\x90\x8b";  // U+1F40B

TEST(Utf8, FindsTheFirstByteThatIsNotValid) {
  EXPECT_EQ(valid_prefix(""), 0u);
  const std::string good = "a\xc3\xa9\xe2\x96\x81" + kWhale;
  EXPECT_EQ(valid_prefix(good), good.size());
  EXPECT_EQ(valid_prefix("ab\xff"), 2u);
  EXPECT_EQ(valid_prefix("ab\xc3"), 2u);              // cut short
  EXPECT_EQ(valid_prefix("ab\xc0\x80"), 2u);          // overlong
  EXPECT_EQ(valid_prefix("ab\xe0\x9f\xbf"), 2u);      // overlong
  EXPECT_EQ(valid_prefix("ab\xed\xa0\x80"), 2u);      // a surrogate
  EXPECT_EQ(valid_prefix("ab\xf4\x90\x80\x80"), 2u);  // above U+10FFFF
  EXPECT_EQ(valid_prefix("\xa9"), 0u);
}

TEST(Utf8, HoldsBackWhatIsNotComplete) {
  for (const std::string& character : {std::string("\xc3\xa9"), std::string("\xe2\x96\x81"), kWhale}) {
    for (size_t size = 1; size < character.size(); ++size) {
      EXPECT_EQ(complete_prefix("x" + character.substr(0, size)), 1u);
    }
    EXPECT_EQ(complete_prefix("x" + character), 1 + character.size());
  }
  EXPECT_EQ(complete_prefix(""), 0u);
  EXPECT_EQ(complete_prefix("x\xff"), 2u);      // will never be one
  EXPECT_EQ(complete_prefix("x\xed\xa0"), 3u);  // nor this
  EXPECT_EQ(complete_prefix("\x80\x80\x80\x80"), 4u);
}

TEST(Utf8, RepairsByteByByte) {
  EXPECT_EQ(repaired("a\xff" + kWhale + "\xc3"), "a\xef\xbf\xbd" + kWhale + "\xef\xbf\xbd");
  EXPECT_EQ(repaired("plain"), "plain");
}

TEST(Utf8, RepairsPartByPart) {
  EXPECT_EQ(repaired_parts("a\xf0\x9f\x90z"), "a\xef\xbf\xbdz");  // three bytes of one character
  EXPECT_EQ(repaired_parts("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(repaired_parts("\xff\xc3" + kWhale + "\xe2\x96"), "\xef\xbf\xbd\xef\xbf\xbd" + kWhale + "\xef\xbf\xbd");
  EXPECT_EQ(repaired_parts("plain"), "plain");
}

TEST(Utf8, CharactersAndBack) {
  const std::string text = "a\xc3\xa9\xe2\x96\x81" + kWhale;
  std::string again;
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = first_code_point(std::string_view(text).substr(at));
    append_code_point(again, next.value);
    at += next.size;
    const CodePoint last = last_code_point(std::string_view(text).substr(0, at));
    EXPECT_TRUE(last.value == next.value);
    EXPECT_EQ(last.size, next.size);
  }
  EXPECT_EQ(again, text);
  EXPECT_TRUE(first_code_point(kWhale).value == 0x1f40b);
}

// ASCII is skipped eight bytes at a time.
TEST(Utf8, FindsInvalidBytesAfterLongAscii) {
  for (size_t before = 0; before < 20; ++before) {
    const std::string ascii(before, 'x');
    EXPECT_EQ(valid_prefix(ascii + "\xff" + ascii), before);
    EXPECT_EQ(valid_prefix(ascii + kWhale + ascii), 2 * before + kWhale.size());
  }
}

}  // namespace
}  // namespace ovq::text
