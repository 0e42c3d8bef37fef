// SentencePiece behind a library of its own: Debian's exports the protobuf it was built with, which must not meet the
// one that torch brings along. It is loaded on demand into a scope of its own.
#pragma once

#include <functional>
#include <string>

#include "ovq/text/tokenizer.h"
#include "ovq/text/tokenizer_training.h"

namespace ovq::text {

struct SentencePiecePlugin {
  // The caller owns the result; DataError if the bytes are not a SentencePiece model.
  Tokenizer* (*make_tokenizer)(std::string model, const std::string& name);
  // The model, as its file holds it; std::invalid_argument if the trainer refuses. `next` gives lines until it gives
  // false.
  std::string (*train)(const TokenizerTraining& options, const std::function<bool(std::string&)>& next);
};
inline constexpr const char* kSentencePiecePlugin = "ovq_sentencepiece_plugin";

// Loaded by the first call; std::runtime_error if it is not there.
const SentencePiecePlugin& sentencepiece_plugin();

}  // namespace ovq::text

extern "C" const ovq::text::SentencePiecePlugin* ovq_sentencepiece_plugin();
