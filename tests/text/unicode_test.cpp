#include "ovq/text/unicode.h"

#include <gtest/gtest.h>

namespace ovq::text {
namespace {

std::string formed(std::string_view text, NormalForm form) {
  std::string buffer;
  return std::string(normal_form(text, form, buffer));
}

TEST(Unicode, NormalForms) {
  const std::string text = "x\xc3\xa9 e\xcc\x81z \xef\xac\x81 \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab";  // é é ﬁ 한
  EXPECT_EQ(formed(text, NormalForm::nfc), "x\xc3\xa9 \xc3\xa9z \xef\xac\x81 \xed\x95\x9c");
  EXPECT_EQ(formed(text, NormalForm::nfd), "xe\xcc\x81 e\xcc\x81z \xef\xac\x81 \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab");
  EXPECT_EQ(formed(text, NormalForm::nfkc), "x\xc3\xa9 \xc3\xa9z fi \xed\x95\x9c");
  EXPECT_EQ(formed(text, NormalForm::nfkd), "xe\xcc\x81 e\xcc\x81z fi \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab");
}

TEST(Unicode, MarksAreOrderedAndComposed) {
  EXPECT_EQ(formed("a\xcc\x81\xcc\xa3", NormalForm::nfc), "\xe1\xba\xa1\xcc\x81");  // acute, dot below: ạ́
  EXPECT_EQ(formed("\xcc\x81\xcc\xa3", NormalForm::nfc), "\xcc\xa3\xcc\x81");
  EXPECT_EQ(formed("\xe2\x84\xab\xe2\x84\xa6", NormalForm::nfc), "\xc3\x85\xce\xa9");  // signs of ångström and ohm
  EXPECT_EQ(formed("\xe0\xa5\x98", NormalForm::nfc), "\xe0\xa4\x95\xe0\xa4\xbc");      // not composed again
}

TEST(Unicode, WhatIsNormalIsNotCopied) {
  std::string buffer;
  for (const std::string_view text : {"", "plain", "caf\xc3\xa9", "\xe4\xbd\xa0\xe5\xa5\xbd \xed\x95\x9c"}) {
    EXPECT_EQ(normal_form(text, NormalForm::nfc, buffer).data(), text.data()) << text;
  }
}

// U+08D3 is a mark since Unicode 11, U+105C9 a composition since Unicode 16.
TEST(Unicode, CharactersNewerThanUnicode9StayAsTheyAre) {
  EXPECT_EQ(formed("\xcc\x81\xe0\xa3\x93", NormalForm::nfc), "\xcc\x81\xe0\xa3\x93");
  EXPECT_EQ(formed("\xf0\x90\x97\x92\xcc\x87", NormalForm::nfc), "\xf0\x90\x97\x92\xcc\x87");
  EXPECT_EQ(formed("\xe3\x8b\xbf", NormalForm::nfkc), "\xe3\x8b\xbf");  // the era Reiwa, of Unicode 12
}

TEST(Unicode, Properties) {
  for (const int c : {0x9, 0x20, 0x85, 0xa0, 0x2003, 0x3000})
    EXPECT_TRUE(is_white_space(static_cast<char32_t>(c))) << c;
  for (const int c : {0x8, 0x41, 0x180e, 0x200b, 0xfeff}) EXPECT_FALSE(is_white_space(static_cast<char32_t>(c))) << c;
  for (const int c : {0x30, 0xb2, 0xbd, 0x663, 0x2167, 0x3007}) EXPECT_TRUE(is_number(static_cast<char32_t>(c))) << c;
  for (const int c : {0x41, 0x4e00, 0x2e}) EXPECT_FALSE(is_number(static_cast<char32_t>(c))) << c;
  for (const int c : {0x41, 0x5f, 0x39, 0xe9, 0x301, 0x24b6, 0x200d, 0x4e00})
    EXPECT_TRUE(is_word(static_cast<char32_t>(c))) << c;
  for (const int c : {0x20, 0x2d, 0xb2, 0x2581, 0x1f40b}) EXPECT_FALSE(is_word(static_cast<char32_t>(c))) << c;
}

TEST(Unicode, LowerCase) {
  EXPECT_EQ(lower_case("ABC \xc3\x89 \xce\xa3\xce\x91\xce\xa3 \xc4\xb0"),
            "abc \xc3\xa9 \xcf\x83\xce\xb1\xcf\x83 i\xcc\x87");
}

}  // namespace
}  // namespace ovq::text
