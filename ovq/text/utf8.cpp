#include "ovq/text/utf8.h"

#include <algorithm>
#include <cstdint>

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
  size_t size = 0;  // according to the first byte; 0: invalid
  bool complete = false;
};

// The first character of a non-empty text.
Character first_character(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  const size_t there = std::min(lead.size, text.size());
  for (size_t i = 1; i < there; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xbf)) return {};
  }
  return {.size = lead.size, .complete = lead.size > 0 && there == lead.size};
}

}  // namespace

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
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

}  // namespace ovq::text
