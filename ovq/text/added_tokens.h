// The added tokens of a tokenizer.json, found in text as Hugging Face does: from the left, the longest first. Tokens
// with normalized = false are looked for in the text as it is, the others in what the normalizer makes of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // as it is looked for
  bool single_word = false;  // not next to letters, digits and the like
  bool left_space = false;   // takes along the white space before it, right_space that after it
  bool right_space = false;
};

// A part of a text: a token, or text between tokens (id -1).
struct TextPart {
  int32_t id = -1;
  size_t begin = 0, end = 0;
};

class AddedTokens {
 public:
  static constexpr size_t kLongest = 512;  // bytes of a token

  AddedTokens() = default;
  // FormatError if two tokens have the same content, or one has none or too much.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls `each` with the parts of valid text, in order. O(bytes of the text) if no token is long.
  template <class Each>
  void split(std::string_view text, const Each& each) const {
    size_t start = 0;
    for (size_t at = 0; !tokens_.empty() && at < text.size();) {
      const size_t byte = static_cast<uint8_t>(text[at]);
      const AddedToken* token = first_[byte] == first_[byte + 1] ? nullptr : longest_at(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      TextPart part{.id = token->id, .begin = at, .end = at + token->content.size()};
      at = part.end;
      if (!take_sides(text, *token, start, part)) continue;
      if (start < part.begin) each(TextPart{.begin = start, .end = part.begin});
      each(part);
      start = part.end;
    }
    if (start != text.size()) each(TextPart{.begin = start, .end = text.size()});
  }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  // False if the token is no single word but must be; otherwise its white space is added to the part.
  static bool take_sides(std::string_view text, const AddedToken& token, size_t start, TextPart& part);

  std::vector<AddedToken> tokens_;        // sorted by content
  std::array<uint32_t, 257> first_ = {};  // tokens_[first_[b]] is the first one that begins with byte b or more
};

}  // namespace ovq::text
