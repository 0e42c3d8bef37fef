// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ovq::text {

// Where the first byte is that does not belong to a whole, valid character; the text's size if there is none.
size_t valid_prefix(std::string_view text);

// How many bytes come before a last character that is valid so far and not complete; the text's size if there is none.
size_t complete_prefix(std::string_view text);

// Every byte that belongs to no valid character as U+FFFD.
std::string repaired(std::string_view text);

}  // namespace ovq::text
