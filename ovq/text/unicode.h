// Properties of characters and Unicode's normal forms, from utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace ovq::text {

// White_Space: what \s matches in a tokenizer's patterns and added tokens with lstrip or rstrip take along.
bool is_white_space(char32_t character);
// Nd, Nl and No.
bool is_number(char32_t character);
// Alphabetic, marks, Nd, connectors and joiners: what the border of an added token with single_word must not be.
bool is_word(char32_t character);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// The normal form of valid text: `text` itself if it is in that form already, otherwise the content of `buffer`.
// O(n log n).
std::string_view normal_form(std::string_view text, NormalForm form, std::string& buffer);

// The lower case of each character by itself.
std::string lower_case(std::string_view text);

}  // namespace ovq::text
