#include "ovq/text/added_tokens.h"

#include <algorithm>

#include "ovq/text/tokenizer_format.h"
#include "ovq/text/unicode.h"
#include "ovq/text/utf8.h"

namespace ovq::text {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    if (content.empty() || content.size() > kLongest)
      refuse_format("added_tokens: token ", tokens_[i].id, " is looked for as ", content.size(),
                    " bytes; must have 1 to ", kLongest);
    if (i > 0 && tokens_[i - 1].content == content)
      refuse_format("added_tokens: tokens ", tokens_[i - 1].id, " and ", tokens_[i].id, " are both looked for as ",
                    in_quotes(content));
    ++first_[static_cast<uint8_t>(content.front()) + size_t{1}];
  }
  for (size_t byte = 1; byte < first_.size(); ++byte) first_[byte] += first_[byte - 1];
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  const auto first_byte = static_cast<uint8_t>(text[at]);
  size_t low = first_[first_byte], high = first_[first_byte + size_t{1}];
  const AddedToken* longest = nullptr;
  // tokens_[low, high) begin with the `size` bytes at `at`; one of exactly these bytes is the first of them.
  for (size_t size = 1; low < high; ++size) {
    if (tokens_[low].content.size() == size) longest = &tokens_[low++];
    if (at + size == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[at + size]);
    const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(low);
    const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(high);
    const auto byte_of = [&](const AddedToken& token) { return static_cast<uint8_t>(token.content[size]); };
    const auto from = std::partition_point(begin, end, [&](const AddedToken& token) { return byte_of(token) < byte; });
    const auto to = std::partition_point(from, end, [&](const AddedToken& token) { return byte_of(token) == byte; });
    low = static_cast<size_t>(from - tokens_.begin());
    high = static_cast<size_t>(to - tokens_.begin());
  }
  return longest;
}

bool AddedTokens::take_sides(std::string_view text, const AddedToken& token, size_t start, TextPart& part) {
  const std::string_view before = text.substr(0, part.begin);
  if (token.single_word) {
    if (!before.empty() && is_word(last_code_point(before).value)) return false;
    if (part.end < text.size() && is_word(first_code_point(text.substr(part.end)).value)) return false;
  }
  while (token.left_space && part.begin > start) {
    const CodePoint last = last_code_point(text.substr(0, part.begin));
    if (!is_white_space(last.value)) break;
    part.begin -= last.size;
  }
  while (token.right_space && part.end < text.size()) {
    const CodePoint next = first_code_point(text.substr(part.end));
    if (!is_white_space(next.value)) break;
    part.end += next.size;
  }
  return true;
}

}  // namespace ovq::text
