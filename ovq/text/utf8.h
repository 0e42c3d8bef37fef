// UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ovq::text {

// The length of the longest prefix that consists of whole, valid characters.
size_t valid_prefix(std::string_view text);

// The length without an incomplete last character that is valid so far.
size_t complete_prefix(std::string_view text);

// Replaces every byte outside valid characters by U+FFFD.
std::string repaired(std::string_view text);

// Replaces every longest part of an invalid character by one U+FFFD, as Unicode recommends and Rust does.
std::string repaired_parts(std::string_view text);

// The first character of valid, non-empty text and its number of bytes.
struct CodePoint {
  char32_t value = 0;
  size_t size = 0;
};
CodePoint first_code_point(std::string_view text);
// The last character of valid, non-empty text.
CodePoint last_code_point(std::string_view text);

// Appends a character that is valid in UTF-8.
void append_code_point(std::string& text, char32_t value);

}  // namespace ovq::text
