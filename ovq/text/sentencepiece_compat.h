// All differences between the supported versions of SentencePiece, 0.1.97 to 0.2.2.
#pragma once

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <string>
#include <utility>
#include <vector>

namespace ovq::text {

// absl::Status since 0.2.2, sentencepiece::util::Status before.
using SentencePieceStatus = decltype(std::declval<const sentencepiece::SentenceIterator&>().status());

// Takes a span of tokens since 0.2.2, a vector before.
template <class Processor>
SentencePieceStatus decode_tokens(const Processor& processor, const std::vector<int>& tokens, std::string* text) {
  if constexpr (requires { processor.Decode({tokens.data(), tokens.size()}, text); })
    return processor.Decode({tokens.data(), tokens.size()}, text);
  else
    return processor.Decode(tokens, text);
}

}  // namespace ovq::text
