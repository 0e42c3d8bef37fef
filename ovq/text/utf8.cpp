#include "ovq/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ovq::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// What the first byte determines: the number of bytes and the range of the second byte.
struct Lead {
  size_t size = 0;  // 0: not a first byte
  uint8_t low = 0x80, high = 0xbf;
};
Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {};
  if (byte < 0xe0) return {2};
  if (byte < 0xf0)
    return {3, byte == 0xe0 ? uint8_t{0xa0} : uint8_t{0x80}, byte == 0xed ? uint8_t{0x9f} : uint8_t{0xbf}};
  if (byte < 0xf5)
    return {4, byte == 0xf0 ? uint8_t{0x90} : uint8_t{0x80}, byte == 0xf4 ? uint8_t{0x8f} : uint8_t{0xbf}};
  return {};
}

struct Character {
  size_t size = 0;   // according to the first byte; 0: invalid
  size_t valid = 0;  // bytes that are valid so far
  bool complete = false;
};

// The first character of a non-empty text.
Character first_character(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  const size_t there = std::min(lead.size, text.size());
  for (size_t i = 1; i < there; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xbf)) return {.valid = i};
  }
  return {.size = lead.size, .valid = there, .complete = lead.size > 0 && there == lead.size};
}

// The length of the longest prefix that is ASCII, at most 7 bytes too short.
size_t ascii_prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t at = 0;
  for (uint64_t word; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & kHighBits) != 0) break;
  }
  return at;
}

}  // namespace

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    at += ascii_prefix(text.substr(at));
    if (at == text.size()) break;
    const Character character = first_character(text.substr(at));
    if (!character.complete) break;
    at += character.size;
  }
  return at;
}

size_t complete_prefix(std::string_view text) {
  constexpr size_t kLongest = 4;
  for (size_t back = 1; back < std::min(kLongest, text.size() + 1); ++back) {
    const size_t at = text.size() - back;
    if ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) continue;  // a continuation byte
    const Character last = first_character(text.substr(at));
    return last.size > 0 && !last.complete ? at : text.size();
  }
  return text.size();
}

std::string repaired(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t good = valid_prefix(text);
    result += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    result += kReplacement;
    text.remove_prefix(1);
  }
  return result;
}

std::string repaired_parts(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t good = valid_prefix(text);
    result += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    result += kReplacement;
    text.remove_prefix(std::max<size_t>(1, first_character(text).valid));
  }
  return result;
}

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const auto low = [&](size_t i) { return byte(i) & 0x3f; };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | low(1), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | low(1) << 6 | low(2), 3};
  return {(lead & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3), 4};
}

CodePoint last_code_point(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  return first_code_point(text.substr(at));
}

void append_code_point(std::string& text, char32_t value) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (value >> shift & 0x3f)); };
  if (value < 0x80) {
    text += static_cast<char>(value);
  } else if (value < 0x800) {
    text += static_cast<char>(0xc0 | value >> 6);
    tail(0);
  } else if (value < 0x10000) {
    text += static_cast<char>(0xe0 | value >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xf0 | value >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace ovq::text
