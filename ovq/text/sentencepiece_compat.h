// The difference between the versions of SentencePiece this project builds with, 0.1.97 to 0.2.2.
#pragma once

#include <sentencepiece_trainer.h>

#include <utility>

namespace ovq::text {

// absl::Status since 0.2.2, before sentencepiece::util::Status.
using SentencePieceStatus = decltype(std::declval<const sentencepiece::SentenceIterator&>().status());

}  // namespace ovq::text
