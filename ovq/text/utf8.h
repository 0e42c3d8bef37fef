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

}  // namespace ovq::text
