#include "ovq/text/tokenizer.h"

#include <gtest/gtest.h>

#include "tests/tasks/fixtures.h"
#include "tests/text/sentencepiece_model.h"

namespace ovq::text {
namespace {

using tasks::test::error_of;

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
  const tasks::test::Folder folder;
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

// Lines are encoded in blocks, with the same tokens as the whole text.
TEST(Tokenizer, LongTextsAreEncodedAsShortOnes) {
  const tasks::test::Folder folder;
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  const std::string line = "The whale swam.  Some say the sailor never sang\n\n at all.\n";
  std::string text;
  std::vector<int32_t> expected = tokenizer->encode(line);
  const std::vector<int32_t> more = tokenizer->encode(line, Place::middle);
  for (int i = 0; i < 5000; ++i) text += line;  // 290 kB
  for (int i = 1; i < 5000; ++i) expected.insert(expected.end(), more.begin(), more.end());
  EXPECT_EQ(tokenizer->encode(text), expected);
  EXPECT_EQ(tokenizer->decode(expected), text);
}

TEST(Tokenizer, OnlyTheStartOfATextHasASpaceBeforeIt) {
  const tasks::test::Folder folder;
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  EXPECT_TRUE(tokenizer->adds_first_space());
  std::vector<int32_t> tokens = tokenizer->encode("The wh");
  EXPECT_EQ(tokenizer->token_bytes(tokens.front()).front(), ' ');
  for (const int32_t token : tokenizer->encode("ale", Place::middle)) tokens.push_back(token);
  EXPECT_EQ(tokenizer->decode(tokens), "The whale");
}

TEST(Tokenizer, LivesInADirectory) {
  const tasks::test::Folder folder;
  EXPECT_EQ(load_tokenizer(folder.path()), nullptr);
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  save_tokenizer(*make_byte_tokenizer(), folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->identity(), "bytes");
  save_tokenizer(*tokenizer, folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->identity(), tokenizer->identity());
  EXPECT_EQ(tokenizer->identity().size(), 64u);
  save_tokenizer(*make_byte_tokenizer(), folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->vocab(), 256);
}

TEST(Tokenizer, BadInput) {
  const tasks::test::Folder folder;
  EXPECT_EQ(
      error_of([&] { make_tokenizer("byte"); }),
      "[tokenizer] byte is not a file; expected \"bytes\", a SentencePiece model, a tokenizer.json or a directory "
      "with one");
  const std::string path = folder.write("broken.model", "not a model");
  EXPECT_EQ(error_of([&] { make_tokenizer(path); }).find("[tokenizer] " + path + " is not a SentencePiece model"), 0u);
  EXPECT_EQ(error_of([&] { make_byte_tokenizer()->decode({256}); }),
            "[tokenizer] token is 256; bytes are within 0 and 255");
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  EXPECT_EQ(error_of([&] { tokenizer->decode({-1}); }),
            "[tokenizer] token is -1; the model has " + std::to_string(test::kModelVocab));
}

// SentencePiece would end the program with these.
TEST(Tokenizer, PiecesThatCannotBeAreRefused) {
  const tasks::test::Folder folder;
  const std::string model(make_tokenizer(test::train_sentencepiece(folder))->model());
  const auto refusal = [&](std::string_view more) {
    const std::string path = folder.write("more.model", model + std::string(more));
    const std::string error = error_of([&] { make_tokenizer(path); });
    const std::string start = "[tokenizer] " + path + " is not a SentencePiece model: ";
    EXPECT_TRUE(error.starts_with(start)) << error;
    return error.substr(std::min(error.size(), start.size()));
  };
  const std::string next = std::to_string(test::kModelVocab);
  EXPECT_EQ(refusal(std::string_view("\x0a\x00", 2)), "piece " + next + " is empty");
  EXPECT_EQ(refusal(std::string_view("\x0a\x02\x0a\x00", 4)), "piece " + next + " is empty");
  EXPECT_EQ(refusal(std::string_view("\x0a\x05\x0a\x03"
                                     "a\x00z",
                                     7)),
            "piece " + next + " has a byte of value 0");
  EXPECT_EQ(refusal(std::string_view("\x0a\x03\x00\x0a\x6b", 5)), "piece " + next + " is damaged");
  EXPECT_EQ(refusal("\x0a\x7f"), "its fields are damaged after piece " + next);
  // A tag of more than 32 bits, which protobuf would cut to that of a piece.
  EXPECT_EQ(refusal(std::string_view("\x8a\x80\x80\x80\x10\x00", 6)), "its fields are damaged after piece " + next);
}

}  // namespace
}  // namespace ovq::text
