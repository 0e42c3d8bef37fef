// SentencePiece behind a library of its own: Debian's exports the protobuf it was built with, which must not meet the
// one that torch brings along. It is loaded on demand into a scope of its own.
#pragma once

#include "ovq/tasks/tokenizer.h"

namespace ovq::tasks {

// The caller owns the result; std::invalid_argument if the file is not a SentencePiece model.
using MakeSentencePieceTokenizer = Tokenizer* (*)(const char* model_path);
inline constexpr const char* kMakeSentencePieceTokenizer = "ovq_make_sentencepiece_tokenizer";

}  // namespace ovq::tasks

extern "C" ovq::tasks::Tokenizer* ovq_make_sentencepiece_tokenizer(const char* model_path);
