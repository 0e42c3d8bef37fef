#include "ovq/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr char32_t kCharacters = 0x110000;

// Marks and compositions that are newer than Unicode 9. Hugging Face's normalizers, which are to be matched, know no
// newer version and leave these characters alone. Complete for Unicode 16.
struct Range {
  char32_t first, last;
};
constexpr auto kNewer = std::to_array<Range>(
    {{0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
     {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x105c9, 0x105c9},
     {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4}, {0x10781, 0x10785}, {0x10787, 0x107b0},
     {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
     {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11383, 0x11383},
     {0x11385, 0x11385}, {0x1138e, 0x1138e}, {0x11391, 0x11391}, {0x113c5, 0x113c5}, {0x113c7, 0x113c8},
     {0x113ce, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
     {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
     {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16121, 0x16128},
     {0x1612f, 0x1612f}, {0x16d68, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1ccd6, 0x1ccf9}, {0x1e030, 0x1e06d},
     {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
     {0x1e5ee, 0x1e5ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}});

bool is_newer(char32_t character) {
  const auto after = std::upper_bound(kNewer.begin(), kNewer.end(), character,
                                      [](char32_t c, const Range& range) { return c < range.first; });
  return after != kNewer.begin() && character <= (after - 1)->last;
}

utf8proc_category_t category(char32_t character) { return utf8proc_category(static_cast<utf8proc_int32_t>(character)); }

utf8proc_option_t options_of(NormalForm form) {
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

void append_decomposed(std::vector<utf8proc_int32_t>& to, char32_t character, utf8proc_option_t options) {
  constexpr size_t kLongest = 32;  // the longest there is has 18 characters
  std::array<utf8proc_int32_t, kLongest> parts;
  int boundary = 0;
  const auto size =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character), parts.data(), kLongest, options, &boundary);
  if (size < 0 || size > static_cast<utf8proc_ssize_t>(kLongest)) throw std::logic_error("a character is not Unicode");
  to.insert(to.end(), parts.begin(), parts.begin() + size);
}

// The characters that NFC neither changes nor joins to the one before them.
const std::bitset<kCharacters>& plain_in_nfc() {
  static const auto plain = [] {
    auto result = std::make_unique<std::bitset<kCharacters>>();
    result->set();
    std::vector<utf8proc_int32_t> parts;
    for (char32_t character = 0; character < kCharacters; ++character) {
      const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(character));
      const bool surrogate = character >= 0xd800 && character < 0xe000;
      if (property.combining_class != 0) result->reset(character);
      if (surrogate) continue;
      parts.clear();
      append_decomposed(parts, character, options_of(NormalForm::nfd));
      if (parts.size() == 1 && parts[0] == static_cast<utf8proc_int32_t>(character)) continue;
      for (size_t i = 1; i < parts.size(); ++i) result->reset(static_cast<size_t>(parts[i]));
      const auto composed = utf8proc_normalize_utf32(parts.data(), static_cast<utf8proc_ssize_t>(parts.size()),
                                                     options_of(NormalForm::nfc));
      if (composed != 1 || parts[0] != static_cast<utf8proc_int32_t>(character)) result->reset(character);
    }
    for (const auto& [first, last] : kNewer) {
      for (char32_t character = first; character <= last; ++character) result->set(character);
    }
    return result;
  }();
  return *plain;
}

bool is_plain(char32_t character, NormalForm form) {
  constexpr char32_t kFirstMark = 0x300;
  if (form != NormalForm::nfc) return character < 0x80 || is_newer(character);
  return character < kFirstMark || plain_in_nfc()[character];
}

// Marks in the order of their combining classes. utf8proc's own order takes quadratic time.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto combining_class = [](utf8proc_int32_t character) {
    return utf8proc_get_property(character)->combining_class;
  };
  for (auto first = characters.begin(); first != characters.end();) {
    const auto last = std::find_if(first, characters.end(), [&](auto c) { return combining_class(c) == 0; });
    if (last - first > 1)
      std::stable_sort(first, last, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    first = last == characters.end() ? last : last + 1;
  }
}

void append_normal_form(std::string& to, std::string_view text, NormalForm form) {
  std::vector<utf8proc_int32_t> characters;
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    append_decomposed(characters, next.value, options_of(form));
    text.remove_prefix(next.size);
  }
  order_marks(characters);
  const auto size =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), options_of(form));
  for (utf8proc_ssize_t i = 0; i < size; ++i)
    append_code_point(to, static_cast<char32_t>(characters[static_cast<size_t>(i)]));
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_number(char32_t character) {
  const utf8proc_category_t kind = category(character);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // letters in circles and squares, and the two joiners
      return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
             (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c || c == 0x200d;
  }
}

std::string_view normal_form(std::string_view text, NormalForm form, std::string& buffer) {
  const unsigned char first_lead = form == NormalForm::nfc ? 0xcc : 0x80;  // of characters that may change
  if (std::none_of(text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) >= first_lead; }))
    return text;
  // Parts that may change begin at a plain character, which does not join the one before it, and end before the next.
  size_t done = 0, plain = 0;
  bool changed = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = first_code_point(text.substr(at));
    if (is_plain(next.value, form)) {
      plain = is_newer(next.value) ? at + next.size : at;
      at += next.size;
      continue;
    }
    size_t end = at + next.size;
    while (end < text.size()) {
      const CodePoint more = first_code_point(text.substr(end));
      if (is_plain(more.value, form)) break;
      end += more.size;
    }
    if (!changed) buffer.clear();
    changed = true;
    buffer += text.substr(done, plain - done);
    append_normal_form(buffer, text.substr(plain, end - plain), form);
    done = plain = at = end;
  }
  if (!changed) return text;
  buffer += text.substr(done);
  return buffer;
}

std::string lower_case(std::string_view text) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the only one whose lower case has two characters
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    if (next.value == kCapitalIWithDot) {
      result += "i\xcc\x87";
    } else {
      append_code_point(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(next.value))));
    }
    text.remove_prefix(next.size);
  }
  return result;
}

}  // namespace ovq::text
