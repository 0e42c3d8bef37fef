// Byte-pair encoding as Hugging Face's tokenizers do it: a word starts as its characters (or bytes), and the pair of
// neighbours with the lowest rank, the leftmost of equals, is merged until no pair has a rank.
// Cost: words that occurred before are looked up; others take O(n log n).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/tokenizer_format.h"

namespace ovq::text {

// Strings with numbers, found by their hash.
class StringTable {
 public:
  // Reserves place; more strings cannot be added.
  void reserve(size_t strings);
  // False if the string is there already. The characters must outlive the table.
  bool add(std::string_view string, int32_t number);
  std::optional<int32_t> find(std::string_view string) const;

 private:
  struct Slot {
    std::string_view string;
    int32_t number = -1;  // of an empty slot
  };
  size_t slot_of(std::string_view string) const;

  std::vector<Slot> slots_;
};

// The tokens of words that occurred before: one slot for each hash, overwritten by the next word with that hash. Longer
// words are not kept.
class WordCache {
 public:
  struct alignas(64) Word {
    static constexpr size_t kBytes = 32, kTokens = 7;

    std::array<uint64_t, 4> bytes = {};
    uint8_t size = 0;  // 0: empty
    uint8_t count = 0;
    std::array<int32_t, kTokens> tokens = {};
  };
  static_assert(sizeof(Word) == 64);

  // The slot for a word of 1 to kBytes bytes; whether the word is in it. If not, the word is put there without tokens.
  Word& at(std::string_view word, bool& known);

 private:
  static constexpr size_t kSlots = 1 << 17;
  std::vector<Word> slots_;  // allocated by the first word
};

struct BpeOptions {
  bool byte_level = false;             // words are bytes, which the vocabulary spells as characters (Ġ is a space)
  bool ignore_merges = false;          // words of the vocabulary are tokens, whatever the merges say
  bool byte_fallback = false;          // characters that are not in the vocabulary become tokens like <0x0A>
  bool fuse_unknown = false;           // unknown characters in a row become one token
  std::optional<std::string> unknown;  // the token for unknown characters; without, they are left out
};

class Bpe {
 public:
  static constexpr int64_t kMostTokens = 1 << 22;

  // FormatError for numbers that are out of range or occur twice, and for merges of what is not in the vocabulary.
  Bpe(const TokenizerSource& source, const BpeOptions& options);

  const BpeOptions& options() const { return options_; }
  // The greatest number of a token plus 1; there may be numbers without a token.
  int64_t vocab() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t token_count() const { return token_count_; }
  std::optional<int32_t> find(std::string_view token) const { return numbers_.find(token); }
  // As the file spells it; no data for a number without a token.
  std::string_view spelling(int32_t token) const { return tokens_[static_cast<size_t>(token)]; }

  // Room for encoding, which no two threads may use at once.
  struct Space {
    struct Symbol {
      int32_t token = 0, previous = 0, next = 0;
      bool merged = false;
    };
    struct Candidate {
      uint32_t rank = 0;
      int32_t position = 0, token = 0;
    };
    WordCache cache;
    std::vector<int32_t> tokens;
    std::vector<Symbol> symbols;
    std::vector<Candidate> candidates;
  };

  // Appends the tokens of a word that is not empty.
  void encode(std::string_view word, std::vector<int32_t>& tokens, Space& space) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t token = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  void add_tokens(const TokenizerSource& source);
  void add_merges(const TokenizerSource& source);
  void prepare_units();
  const Merge* find_merge(int32_t left, int32_t right) const;
  void encode_part(std::string_view word, std::vector<int32_t>& tokens, Space& space) const;
  void encode_uncached(std::string_view word, std::vector<int32_t>& tokens, Space& space) const;
  void append_units(std::string_view word, std::vector<int32_t>& tokens) const;
  void merge_few(std::vector<int32_t>& tokens) const;
  void merge_many(std::vector<int32_t>& tokens, Space& space) const;

  BpeOptions options_;
  std::string characters_;                // of all tokens
  std::vector<std::string_view> tokens_;  // by number
  int64_t token_count_ = 0;
  StringTable numbers_;
  std::string bytes_;                          // of the tokens that are bytes, if words are
  StringTable byte_words_;                     // tokens by their bytes, for ignore_merges
  std::vector<Merge> merges_;                  // by hash of the pair
  std::array<int32_t, 256> byte_tokens_ = {};  // of single bytes, or of ASCII characters; -1: none
  std::array<int32_t, 256> fallback_tokens_ = {};
  int32_t unknown_ = -1;
  // No merge joins ▁ to another character before it, except those in before_marks_: a text without a pre_tokenizer is
  // encoded word by word.
  bool splits_at_marks_ = false;
  std::vector<char32_t> before_marks_;
};

// The byte that a character of byte-level vocabularies stands for; -1 if it stands for none.
int byte_of_character(char32_t character);
// The bytes that a token of such a vocabulary stands for; std::nullopt if it has other characters.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace ovq::text
