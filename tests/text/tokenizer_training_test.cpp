#include "ovq/text/tokenizer_training.h"

#include <gtest/gtest.h>

#include "ovq/text/tokenizer.h"
#include "tests/tasks/fixtures.h"

namespace ovq::text {
namespace {

using tasks::test::error_of;

class TokenizerTrainings : public testing::Test {
 protected:
  TokenizerTrainings() {
    std::string text;
    for (const char* who : {"whale", "sailor", "captain", "harpooner", "storm"}) {
      for (const char* what : {"swam", "waited", "sang", "went under"}) {
        text += std::string("The ") + who + " " + what + ".\nSome say the " + who + " never " + what + " at all.\n";
      }
    }
    folder_.write("books/a.txt", text);
    folder_.write("books/long.txt", std::string(9000, 'x') + " " + text);  // a line in parts
  }
  tasks::test::Folder folder_;
  std::string books_ = folder_.path("books");
};

TEST_F(TokenizerTrainings, GivesTextBackExactlyAndIsRepeatable) {
  for (const TokenizerType type : {TokenizerType::unigram, TokenizerType::bpe}) {
    const TokenizerTraining options{.type = type, .vocab = 300};
    const std::string model = train_tokenizer({books_}, options);
    EXPECT_EQ(train_tokenizer({books_}, options), model);
    const auto tokenizer = make_sentencepiece_tokenizer(model, "trained");
    EXPECT_EQ(tokenizer->vocab(), 300);
    EXPECT_FALSE(tokenizer->adds_first_space());
    EXPECT_EQ(tokenizer->begin_token(), 1);
    EXPECT_EQ(tokenizer->end_token(), 2);
    const std::string text = "The whale sang.\n\n  Two  spaces, \xc3\xa9, \xf0\x9f\x90\x8b\t";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_LT(tokenizer->encode("The whale").size(), 9u);
  }
}

TEST_F(TokenizerTrainings, BadInput) {
  EXPECT_EQ(error_of([&] { train_tokenizer({books_}, {.vocab = 259}); }),
            "[tokenizer] vocab is 259; must be in [260, 1048576]");
  // Neither the trainer's source lines nor its own options.
  EXPECT_NE(error_of([&] {
              train_tokenizer({books_}, {.vocab = 100'000});
            }).find("[tokenizer] vocab is 100000; must be at most "),
            std::string::npos);
  const std::string letters = folder_.write("letters.txt", "\xc3\xa9\xc3\xa8\xc3\xa0\xc3\xb4\n");
  EXPECT_EQ(error_of([&] { train_tokenizer({letters}, {.vocab = 260}); }),
            "[tokenizer] vocab is 260; must be at least 263, which includes a token for each character of this text");
  const std::string bad = folder_.write("bad.txt", "caf\xe9");
  EXPECT_EQ(error_of([&] { train_tokenizer({bad}, {}); }),
            "[tokenizer] " + bad + " is not UTF-8 at byte 3; convert it, for example with iconv");
  EXPECT_NE(error_of([&] { train_tokenizer({folder_.path("none")}, {}); }).find("does not exist"), std::string::npos);
}

}  // namespace
}  // namespace ovq::text
