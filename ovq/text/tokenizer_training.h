// Trains a SentencePiece model that restores every text exactly: no normalisation, no space added before the first
// word, and bytes for text that no piece covers. Lines are learned one by one, so no piece contains a line break.
// Tokens: 0 unknown, 1 begins a document, 2 ends one, then the 256 bytes, then the pieces.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ovq/base/fields.h"

namespace ovq::text {

enum class TokenizerType { unigram, bpe };

constexpr auto enum_names(TokenizerType) {
  using enum TokenizerType;
  return std::to_array<EnumName<TokenizerType>>({{unigram, "unigram"}, {bpe, "bpe"}});
}

struct TokenizerTraining {
  TokenizerType type = TokenizerType::unigram;
  int64_t vocab = 2048;
  int64_t lines = 1'000'000;
  uint64_t seed = 0;
};

template <class Fields>
void list_fields(Fields& field, TokenizerTraining& o) {
  field("type", o.type, "algorithm that finds the pieces");
  field("vocab", o.vocab, "number of tokens, including the 256 bytes", within(260, 1 << 20));
  field("lines", o.lines, "maximum number of lines to learn from, drawn at random if the text has more", at_least(1));
  field("seed", o.seed, "seed of the draw");
}

// Reads text files and folders of .txt files; returns the model as its file's content. Invalid text is a DataError that
// names the file, invalid options are a std::invalid_argument.
std::string train_tokenizer(const std::vector<std::string>& paths, const TokenizerTraining& options);

}  // namespace ovq::text
