// A small SentencePiece model trained by the test: it can encode every text and restores it exactly.
#pragma once

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <string>

#include "tests/tasks/fixtures.h"

namespace ovq::test {

inline constexpr int64_t kModelVocab = 320;

// Returns the path of the model.
inline std::string train_sentencepiece(const tasks::test::Folder& folder) {
  std::string text;
  for (const char* who : {"whale", "sailor", "captain", "harpooner", "storm"}) {
    for (const char* what : {"swam", "waited", "sang", "went under"}) {
      text +=
          std::string("The ") + who + " " + what + ".\nSome say the " + who + " never " + what + " at all, they do.\n";
    }
  }
  const std::string corpus = folder.write("sentencepiece/corpus.txt", text);
  const std::string prefix = folder.path("sentencepiece/model");
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--minloglevel=3 --model_type=bpe --byte_fallback=true --normalization_rule_name=identity "
      "--remove_extra_whitespaces=false --hard_vocab_limit=true --num_threads=1 --vocab_size=" +
      std::to_string(kModelVocab) + " --input=" + corpus + " --model_prefix=" + prefix);
  EXPECT_TRUE(status.ok()) << status.message();
  return prefix + ".model";
}

}  // namespace ovq::test
