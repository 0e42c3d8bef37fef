#include "ovq/text/token_file.h"

#include <gtest/gtest.h>

#include "ovq/base/checksum.h"
#include "tests/tasks/fixtures.h"
#include "tests/text/sentencepiece_model.h"

namespace ovq::text {
namespace {

using tasks::test::error_of;

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<int32_t> tokens_of(const TokenFile& file, const TokenDocument& document) {
  std::vector<int32_t> tokens(static_cast<size_t>(document.tokens));
  copy_tokens(tokens, file.data() + document.start * file.token_bytes(), file.token_bytes());
  return tokens;
}

class TokenFiles : public testing::Test {
 protected:
  TokenFiles() {
    folder_.write("books/a.txt", "The whale swam.");
    folder_.write("books/b.txt", "The storm sang.\nThe sailor waited.\n");
    folder_.write("books/notes.md", "no document");
  }

  tasks::test::Folder folder_;
  std::string books_ = folder_.path("books"), path_ = folder_.path("x.tokens");
};

TEST_F(TokenFiles, HoldWhatWasTokenised) {
  for (const std::string& name : {std::string("bytes"), test::train_sentencepiece(folder_)}) {
    const auto tokenizer = make_tokenizer(name);
    std::vector<std::string> heard;
    const TokenizeReport report = write_token_file(
        path_, *tokenizer, {books_}, [&](const TokenDocument& document) { heard.push_back(document.name); });
    EXPECT_TRUE(is_token_file(path_));
    const TokenFile file(path_);
    EXPECT_EQ(file.vocab(), tokenizer->vocab());
    EXPECT_EQ(file.token_bytes(), name == "bytes" ? 1 : 2);
    EXPECT_EQ(file.tokenizer(), tokenizer->identity());
    ASSERT_EQ(file.documents().size(), 2u);
    int64_t tokens = 0;
    for (size_t i = 0; i < 2; ++i) {
      const TokenDocument& document = file.documents()[i];
      const std::string text = content(folder_.path(i == 0 ? "books/a.txt" : "books/b.txt"));
      EXPECT_EQ(document.name, heard[i]);
      EXPECT_EQ(document.start, tokens);
      EXPECT_EQ(document.text_bytes, static_cast<int64_t>(text.size()));
      EXPECT_EQ(tokens_of(file, document), tokenizer->encode_document(text));
      tokens += document.tokens;
    }
    EXPECT_EQ(file.tokens(), tokens);
    EXPECT_EQ(report.tokens, tokens);
    EXPECT_EQ(report.documents, 2);
  }
}

TEST_F(TokenFiles, DamageOfAnyByteIsFound) {
  write_token_file(path_, *make_byte_tokenizer(), {books_});
  const std::string sound = content(path_);
  for (size_t at = 0; at < sound.size(); ++at) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    folder_.write("x.tokens", damaged);
    EXPECT_NE(error_of([&] { TokenFile file(path_); }), "") << "byte " << at;
  }
  for (const size_t size : {size_t{7}, size_t{127}, size_t{128}, sound.size() - 1}) {
    folder_.write("x.tokens", sound.substr(0, size));
    EXPECT_NE(error_of([&] { TokenFile file(path_); }), "") << size << " bytes";
  }
  folder_.write("x.tokens", sound + "x");
  EXPECT_NE(error_of([&] { TokenFile file(path_); }), "");
}

// A valid checksum does not make a header valid.
TEST_F(TokenFiles, HostileHeadersAreErrors) {
  write_token_file(path_, *make_byte_tokenizer(), {books_});
  const std::string sound = content(path_);
  const auto with = [&](size_t at, int64_t value) {
    std::string changed = sound;
    std::memcpy(changed.data() + at, &value, sizeof(value));
    Crc32c checksum;
    checksum.add(std::as_bytes(std::span(changed)).first(124));
    const uint32_t sum = checksum.value();
    std::memcpy(changed.data() + 124, &sum, sizeof(sum));
    folder_.write("x.tokens", changed);
    return error_of([&] { TokenFile file(path_); });
  };
  EXPECT_EQ(with(24, TokenFile(path_).tokens()), "");
  for (const int64_t value : {int64_t{-1}, int64_t{0}, int64_t{1} << 40, int64_t{1} << 62}) {
    for (const size_t field : {16, 24, 32, 40}) {  // vocabulary, tokens, documents, bytes of their part
      EXPECT_NE(with(field, value), "") << "field at " << field << " is " << value;
    }
  }
}

TEST_F(TokenFiles, BadTextIsNamedAndLeavesNoFile) {
  const std::string bad = folder_.write("books/c.txt", "fine so far \xff");
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder_));
  EXPECT_EQ(error_of([&] { write_token_file(path_, *tokenizer, {books_}); }),
            "[token file] " + bad + ": [tokenizer] the text is not UTF-8 at byte 12; SentencePiece models need it");
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(is_token_file(bad));
  EXPECT_EQ(error_of([&] { TokenFile file(bad); }),
            "[token file] " + bad + " is not a file of tokens: it is too short");
}

}  // namespace
}  // namespace ovq::text
