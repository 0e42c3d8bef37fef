#include "ovq/text/text_stream.h"

#include <gtest/gtest.h>

#include "tests/tasks/fixtures.h"
#include "tests/text/sentencepiece_model.h"

namespace ovq::text {
namespace {

using tasks::test::error_of;

// The output for bytes added one by one, with a '|' after each.
std::string shown(const std::string& bytes, const std::vector<std::string>& stops = {}) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream stream(*tokenizer, Place::middle, stops);
  std::string text;
  for (const char byte : bytes) {
    text += stream.add(static_cast<unsigned char>(byte)) + "|";
    if (stream.stopped()) return text + "stopped";
  }
  return text + stream.finish();
}

TEST(TextStream, CharactersComeWhole) {
  EXPECT_EQ(shown("a\xc3\xa9z"), "a||\xc3\xa9|z|");
  EXPECT_EQ(shown("\xf0\x9f\x90\x8b"), "|||\xf0\x9f\x90\x8b|");
  EXPECT_EQ(shown("\xf0\x9f"), "||\xef\xbf\xbd\xef\xbf\xbd");     // never complete
  EXPECT_EQ(shown("\xf0\x9fz"), "||\xef\xbf\xbd\xef\xbf\xbdz|");  // cannot become complete
}

TEST(TextStream, StopStringsAreFoundAcrossTokensAndNotShown) {
  EXPECT_EQ(shown("one END two", {"END"}), "o|n|e| ||||stopped");
  EXPECT_EQ(shown("one ENtwo", {"END"}), "o|n|e| |||ENt|w|o|");
  EXPECT_EQ(shown("aab", {"aab"}), "|||stopped");
  EXPECT_EQ(shown("aaab", {"aab"}), "||a||stopped");  // the first a turns out to be text
  EXPECT_EQ(shown("one EN", {"END"}), "o|n|e| |||EN");
  EXPECT_EQ(shown("xy", {"long", "y"}), "x||stopped");
  EXPECT_EQ(shown("\xc3\xa9\xc3\xa9", {"\xc3\xa9\xc3\xa9"}), "||||stopped");
}

TEST(TextStream, AStopStringWithinOneToken) {
  const tasks::test::Folder folder;
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  const std::vector<int32_t> tokens = tokenizer->encode("The whale swam.");
  TextStream stream(*tokenizer, Place::start, {"ale s"});
  std::string text;
  for (const int32_t token : tokens) text += stream.add(token);
  EXPECT_EQ(text + stream.finish(), "The wh");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, TokensOneByOneAreTheWholeText) {
  const tasks::test::Folder folder;
  const auto tokenizer = make_tokenizer(test::train_sentencepiece(folder));
  ASSERT_TRUE(tokenizer->adds_first_space());
  const std::string words = "The whale swam.\n  A na\xc3\xafve \xf0\x9f\x90\x8b!\n";
  for (const std::string& whole : {words, " " + words}) {
    TextStream stream(*tokenizer, Place::start);
    std::string text;
    for (const int32_t token : tokenizer->encode_document(whole)) text += stream.add(token);
    EXPECT_EQ(text + stream.finish(), whole);
  }
}

TEST(TextStream, EmptyStopStringsAreErrors) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(error_of([&] { TextStream(*tokenizer, Place::middle, {""}); }), "[generate] a stop string is empty");
}

}  // namespace
}  // namespace ovq::text
