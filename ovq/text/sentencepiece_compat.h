// The differences between the versions of SentencePiece this project builds with, 0.1.97 to 0.2.2: the only place that
// knows them.
#pragma once

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <string>
#include <utility>
#include <vector>

namespace ovq::text {

// absl::Status since 0.2.2, before sentencepiece::util::Status.
using SentencePieceStatus = decltype(std::declval<const sentencepiece::SentenceIterator&>().status());

// From a span of tokens since 0.2.2, before from a vector.
template <class Processor>
SentencePieceStatus decode_tokens(const Processor& processor, const std::vector<int>& tokens, std::string* text) {
  if constexpr (requires { processor.Decode({tokens.data(), tokens.size()}, text); })
    return processor.Decode({tokens.data(), tokens.size()}, text);
  else
    return processor.Decode(tokens, text);
}

}  // namespace ovq::text
