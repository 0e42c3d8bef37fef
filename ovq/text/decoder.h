// The decoder of a tokenizer.json: tokens, as the vocabulary spells them, to text. ByteLevel, Replace, ByteFallback,
// Fuse, Strip, Metaspace and sequences of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/normalizer.h"

namespace ovq::text {

class Decoder {
 public:
  // FormatError also for what needs the whole text: after Fuse, only one space may be stripped from its start.
  Decoder(const nlohmann::json& value, const std::string& path);

  // The text of all tokens. Bytes that are not UTF-8 become U+FFFD: ByteLevel has one for each longest part of a
  // character, ByteFallback one for every byte of tokens like <0x0A> that follow each other.
  std::string decode(std::vector<std::string> tokens) const;
  // The bytes of one token in the middle of a text.
  std::string token_bytes(std::string_view token) const;
  // Whether the space that a text begins with is removed.
  bool strips_first_space() const { return strips_first_space_; }

 private:
  enum class Kind { byte_level, replace, byte_fallback, fuse, strip, metaspace };
  struct Step {
    Kind kind = Kind::fuse;
    std::optional<Pattern> pattern;
    std::string content;
    bool whole = false;       // Strip of the whole text instead of each token
    bool first_less = false;  // Metaspace: the first token loses its spaces
  };

  void add(const nlohmann::json& value, const std::string& path);
  void apply(const Step& step, std::vector<std::string>& tokens) const;

  std::vector<Step> steps_;
  bool fused_ = false, strips_first_space_ = false;
};

}  // namespace ovq::text
