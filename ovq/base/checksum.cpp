#include "ovq/base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace ovq {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

constexpr uint32_t kPolynomial = 0x82f63b78;

// kTables[z][b]: remainder of byte b followed by z zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) ? kPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (size_t zeros = 1; zeros < tables.size(); ++zeros) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[zeros - 1][byte];
      tables[zeros][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

}  // namespace

void Crc32c::add(std::span<const std::byte> bytes) {
  uint32_t remainder = remainder_;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= remainder;
    remainder = 0;
    for (size_t i = 0; i < 8; ++i) remainder ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; left > 0; --left, ++at) {
    remainder = (remainder >> 8) ^ kTables[0][(remainder ^ std::to_integer<uint32_t>(*at)) & 0xff];
  }
  remainder_ = remainder;
}

void Crc32c::add(std::string_view text) {
  add(static_cast<uint64_t>(text.size()));
  add(std::as_bytes(std::span(text)));
}

void Crc32c::add(uint64_t value) { add(std::as_bytes(std::span(&value, 1))); }

std::string Crc32c::text() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result = "crc32c:";
  for (int shift = 28; shift >= 0; shift -= 4) result += kDigits[(value() >> shift) & 0xf];
  return result;
}

}  // namespace ovq
