// The pre_tokenizer of a tokenizer.json: splits text into words, within which tokens are formed. ByteLevel, Split,
// Digits, Metaspace and sequences of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/normalizer.h"

namespace ovq::text {

// What becomes of the matches of a pattern.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// Where a piece of text stands.
struct PiecePlace {
  bool first = false;    // at the start of the text, before which nothing is left out
  bool prepends = true;  // spaces may be added before it
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // the text is one word
  PreTokenizer(const nlohmann::json& value, const std::string& path);

  // Whether words are sequences of bytes instead of characters.
  bool byte_level() const { return byte_level_; }
  // Whether ByteLevel adds a space before words; std::nullopt without ByteLevel.
  std::optional<bool> byte_level_adds_space() const;

  // Calls `word` for every word of valid text, in order; none is empty.
  using Word = std::function<void(std::string_view)>;
  void split(std::string_view text, PiecePlace place, const Word& word) const { run(0, text, place, word); }

 private:
  enum class Kind { split, byte_level, digits, metaspace };
  struct Step {
    Kind kind = Kind::split;
    std::optional<Pattern> pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool inverted = false;
    bool always_adds = false, first_adds = false;  // a space before each piece, or before the first
    bool splits = true;                            // Metaspace
    std::string space;                             // Metaspace's
  };

  void add(const nlohmann::json& value, const std::string& path);
  void run(size_t step, std::string_view text, PiecePlace place, const Word& word) const;
  template <class Matches>
  void run_split(size_t step, std::string_view text, PiecePlace place, const Word& word, const Matches& matches) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace ovq::text
