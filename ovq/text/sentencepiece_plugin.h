// SentencePiece in a library of its own: Debian's SentencePiece exports its protobuf, which must not clash with
// torch's. The library is loaded on demand into a separate scope.
#pragma once

#include <functional>
#include <string>

#include "ovq/text/tokenizer.h"
#include "ovq/text/tokenizer_training.h"

namespace ovq::text {

struct SentencePiecePlugin {
  // The caller owns the result; DataError if the bytes are not a SentencePiece model.
  Tokenizer* (*make_tokenizer)(std::string model, const std::string& name);
  // Returns the model as its file's content; std::invalid_argument if the trainer refuses. `next` returns lines until
  // it returns false.
  std::string (*train)(const TokenizerTraining& options, const std::function<bool(std::string&)>& next);
};
inline constexpr const char* kSentencePiecePlugin = "ovq_sentencepiece_plugin";

// The first call loads it; std::runtime_error if it is missing.
const SentencePiecePlugin& sentencepiece_plugin();

}  // namespace ovq::text

extern "C" const ovq::text::SentencePiecePlugin* ovq_sentencepiece_plugin();
