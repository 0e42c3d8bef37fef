#include "ovq/base/checksum.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/files/fixtures.h"

namespace ovq::files::test {
namespace {

uint32_t crc(std::string_view text) {
  Crc32c checksum;
  checksum.add(bytes_of(text));
  return checksum.value();
}

// RFC 3720, B.4, and the usual check value.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc("123456789"), 0xe3069283u);
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending;
  for (char i = 0; i < 32; ++i) ascending += i;
  EXPECT_EQ(crc(ascending), 0x46dd794eu);
}

TEST(Crc32c, PiecesGiveTheWhole) {
  std::string text;
  for (int i = 0; i < 61; ++i) text += static_cast<char>(i * 37);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Crc32c checksum;
    checksum.add(bytes_of(std::string_view(text).substr(0, cut)));
    checksum.add(bytes_of(std::string_view(text).substr(cut)));
    EXPECT_EQ(checksum.value(), crc(text)) << "cut at " << cut;
  }
}

TEST(Crc32c, Text) {
  Crc32c checksum;
  checksum.add(bytes_of("123456789"));
  EXPECT_EQ(checksum.text(), "crc32c:e3069283");
}

TEST(Crc32c, FieldsDoNotRunTogether) {
  Crc32c a, b;
  a.add(std::string_view("ab"));
  a.add(std::string_view("c"));
  b.add(std::string_view("a"));
  b.add(std::string_view("bc"));
  EXPECT_NE(a.value(), b.value());
}

}  // namespace
}  // namespace ovq::files::test
