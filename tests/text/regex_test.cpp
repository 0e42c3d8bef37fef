#include "ovq/text/regex.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/text/tokenizer_format.h"

namespace ovq::text {
namespace {

// The matches, each between bars.
std::string matches_of(const std::string& pattern, const std::string& text) {
  std::string result = "|";
  for_each_match(Regex(pattern), text,
                 [&](Regex::Match match) { result += text.substr(match.begin, match.end - match.begin) + "|"; });
  return result;
}

std::string refusal_of(const std::string& pattern) {
  try {
    Regex regex(pattern);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

TEST(Regex, FindsWhatOnigurumaFinds) {
  EXPECT_EQ(matches_of(R"(\w+)", "na\xc3\xafve \xc2\xbd_ e\xcc\x81!"), "|na\xc3\xafve|\xc2\xbd_|e\xcc\x81|");
  EXPECT_EQ(matches_of(R"(\s)", "a\xe1\xa0\x8e\xc2\xa0"), "|\xc2\xa0|");  // U+180E is none
  EXPECT_EQ(matches_of(R"([\S]+)", "ab c"), "|ab|c|");
  EXPECT_EQ(matches_of(R"([^\s\p{L}]+)", "a1 !b"), "|1|!|");
  EXPECT_EQ(matches_of(R"(\h+)", "xyfade9g"), "|fade9|");
  EXPECT_EQ(matches_of(R"(\ba.|b\B)", "aa ba bb"), "|aa|b|b|");
  EXPECT_EQ(matches_of("(?i:'s)", "'S '\xc5\xbf"), "|'S|'\xc5\xbf|");   // the long s
  EXPECT_EQ(matches_of("(?i)k", "K\xe2\x84\xaa"), "|K|\xe2\x84\xaa|");  // the sign of kelvin
  EXPECT_EQ(matches_of("a$|^b", "ab\nba\nb"), "|b|a|b|");               // at every line break
  EXPECT_EQ(matches_of(".+", "ab\r\ncd"), "|ab\r|cd|");
  EXPECT_EQ(matches_of(R"(\p{Han}+)", "a\xe6\xbc\xa2\xe3\x81\x8b"), "|\xe6\xbc\xa2|");
  EXPECT_EQ(matches_of(R"(\p{^L}\P{L}\p{Lu})", "a1 B"), "|1 B|");
  EXPECT_EQ(matches_of(R"(x{,2}y)", "xxxy"), "|xxy|");
  EXPECT_EQ(matches_of(R"({a}|b{)", "{a}b{"), "|{a}|b{|");
  EXPECT_EQ(matches_of(R"(\x{e9}|\u00df|\x41|\v)",
                       "\xc3\xa9\xc3\x9f"
                       "A\v\n"),
            "|\xc3\xa9|\xc3\x9f|A|\v|");
  EXPECT_EQ(matches_of(R"([\x{61}-\x{63}\-\]\\^]+)", "abc-]\\^d"), "|abc-]\\^|");
  EXPECT_EQ(matches_of(R"((a|b)++c|(?>a+)b|(?<=x)y(?!z)|(?<!x)w(?=v))", "abc aab xyz xy wv xwv"), "|abc|aab|y|w|");
  EXPECT_EQ(matches_of(" ?[!-/]+|[+*-]", "a !/ -"), "| !/| -|");
}

TEST(Regex, EmptyMatchesDoNotFollowAnother) {
  EXPECT_EQ(matches_of("b*", "abc"), "||b||");
  EXPECT_EQ(matches_of("x*", "\xc3\xa9\xe6\xbc\xa2"), "||||");  // whole characters are passed
  EXPECT_EQ(matches_of("x*", ""), "||");
}

TEST(Regex, RefusesWhatItDoesNotKnowOrMeansSomethingElse) {
  EXPECT_EQ(refusal_of(""), "the pattern has 0 bytes; must have 1 to 16384");
  EXPECT_EQ(refusal_of(std::string(20000, 'x')), "the pattern has 20000 bytes; must have 1 to 16384");
  EXPECT_EQ(refusal_of("(a"), "the pattern \"(a\" is not one: missing closing parenthesis");
  EXPECT_EQ(refusal_of("a)"), "the pattern \"a)\" has a ) without (, which is not supported");
  EXPECT_EQ(refusal_of(R"((a)\1)"), R"(the pattern "(a)\\1" has \1, which is not supported)");
  for (const char* pattern :
       {R"(\R)",       R"(\X)",   R"(\G)",   R"(\K)",       R"(\pL)",        R"(\p{Alpha})",   R"(\p{Letter})",
        R"(\p{L)",     "(?<n>a)", "(?x)a",   "a(?i)b",      "(?m:.)",        "(*FAIL)",        "(?~a)",
        "[a",          "[]a]",    "[a[b]]",  "[[:alpha:]]", "[a&&b]",        R"([\W])",        R"([+-\s])",
        R"([\s-x])",   "a{2}?",   "a{2,3}+", "a{3,2}",      "a{1,99999}",    R"(\xe9)",        R"(\x{110000})",
        R"(\x{d800})", R"(\u00)", "(?i:ss)", "(?i:fi)",     "(?i:\xc3\xa9)", R"((?i:\p{Lu}))", R"(\)"}) {
    EXPECT_NE(refusal_of(pattern), "") << pattern;
  }
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "(";
  EXPECT_NE(refusal_of(deep).find("groups deeper than 100"), std::string::npos);
}

// Half a million characters that a group repeats need the JIT compiler's stack, steps that grow exponentially end.
TEST(Regex, LongAndHopelessMatchesEnd) {
  const std::string text(500000, 'a');
  EXPECT_EQ(matches_of("(?:a|b)+", text).size(), text.size() + 2);
  EXPECT_THROW(matches_of("(?:a+)+(?:b|c)", text.substr(0, 100)), std::invalid_argument);
}

}  // namespace
}  // namespace ovq::text
