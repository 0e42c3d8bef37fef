#include "ovq/tasks/tokenizer.h"

#include <gtest/gtest.h>

#include "tests/tasks/fixtures.h"
#include "tests/tasks/sentencepiece_model.h"

namespace ovq::tasks {
namespace {

using test::error_of;

TEST(Tokenizer, BytesRoundTrip) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab(), 256);
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const std::vector<int32_t> tokens = tokenizer->encode(all);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(tokens), all);
  EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST(Tokenizer, BytesHaveReadableNames) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->token_name('a'), "a");
  EXPECT_EQ(tokenizer->token_name(' '), " ");
  EXPECT_EQ(tokenizer->token_name('\n'), "\\n");
  EXPECT_EQ(tokenizer->token_name('\\'), "\\\\");
  EXPECT_EQ(tokenizer->token_name(0xe9), "\\xe9");
  EXPECT_EQ(tokenizer->token_name(0), "\\x00");
}

TEST(Tokenizer, SentencePieceRoundTrip) {
  const test::Folder folder;
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  EXPECT_EQ(tokenizer->vocab(), test::kModelVocab);
  const std::string text = "The whale swam.\n  Two  spaces, a na\xc3\xafve caf\xc3\xa9, \xf0\x9f\x90\x8b!\n";
  const std::vector<int32_t> tokens = tokenizer->encode(text);
  EXPECT_LT(tokens.size(), text.size());
  for (int32_t token : tokens) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, tokenizer->vocab());
    EXPECT_EQ(tokenizer->token_name(token).find('\n'), std::string::npos);
  }
  EXPECT_EQ(tokenizer->decode(tokens), text);
}

TEST(Tokenizer, BadInput) {
  const test::Folder folder;
  EXPECT_EQ(error_of([&] { make_tokenizer("byte"); }),
            "[tokenizer] byte is not a file; expected \"bytes\" or a SentencePiece model");
  const std::string path = folder.write("broken.model", "not a model");
  EXPECT_EQ(error_of([&] { make_tokenizer(path); }).find("[tokenizer] " + path + " is not a SentencePiece model"), 0u);
  EXPECT_EQ(error_of([&] { make_byte_tokenizer()->decode({256}); }),
            "[tokenizer] token is 256; bytes are within 0 and 255");
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  EXPECT_EQ(error_of([&] { tokenizer->decode({-1}); }),
            "[tokenizer] token is -1; the model has " + std::to_string(test::kModelVocab));
}

}  // namespace
}  // namespace ovq::tasks
