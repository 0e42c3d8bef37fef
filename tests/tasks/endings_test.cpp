#include "ovq/tasks/endings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ovq/tasks/choice.h"
#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using nlohmann::json;
using test::error_of;

// Sentences of five words that contain their number.
std::string numbered_sentences(int first, int count, const std::string& mark) {
  std::string text;
  for (int i = first; i < first + count; ++i)
    text += "Here\nis sentence  " + std::to_string(i) + " " + mark + (i % 3 == 0 ? "!\" " : ". ");
  return text;
}

int number_in(const std::string& text) { return std::stoi(text.substr(text.find("sentence ") + 9)); }

TEST(Endings, TheRightOneFollowsTheContext) {
  const test::Folder folder;
  const std::vector<std::string> texts = {folder.write("books/a.txt", numbered_sentences(0, 60, "a")),
                                          folder.write("books/b.txt", numbered_sentences(1000, 90, "b"))};
  const EndingOptions options{.questions = 200, .choices = 3, .context_words = 10, .ending_words = 4, .seed = 7};
  const std::string lines = make_endings(texts, options);
  EXPECT_EQ(lines, make_endings({folder.path("books")}, options));
  const std::string path = folder.write("endings.jsonl", lines);
  const std::vector<Question> questions = read_questions(Benchmark::endings, path);
  ASSERT_EQ(questions.size(), 200u);
  std::set<int64_t> answers;
  int of_first = 0;
  for (const Question& question : questions) {
    ASSERT_EQ(question.choices.size(), 3u);
    const std::string& context = question.choices[0].context;
    EXPECT_EQ(std::count(context.begin(), context.end(), ' '), 9);
    const int before = number_in(context.substr(context.rfind("Here")));
    std::set<int> numbers;
    for (int64_t i = 0; i < 3; ++i) {
      const Choice& choice = question.choices[static_cast<size_t>(i)];
      EXPECT_EQ(choice.context, context);
      EXPECT_TRUE(choice.continuation.starts_with(" Here is sentence ")) << choice.continuation;
      const int number = number_in(choice.continuation);
      EXPECT_EQ(number == before + 1, i == question.answer);
      EXPECT_EQ(number >= 1000, before >= 1000);  // of the same document
      numbers.insert(number);
    }
    EXPECT_EQ(numbers.size(), 3u);
    answers.insert(question.answer);
    of_first += before < 1000 ? 1 : 0;
  }
  EXPECT_EQ(answers.size(), 3u);
  EXPECT_NEAR(of_first, 200 * 58 / 146, 30);
}

TEST(Endings, BadInput) {
  const test::Folder folder;
  const std::string few = folder.write("few.txt", "One sentence. And two. And no more of them here.");
  EXPECT_EQ(error_of([&] { make_endings({few}, {}); }),
            "[endings] no document has 8 sentences after the first 48 words");
  EXPECT_EQ(error_of([&] { make_endings({few}, {.choices = 1}); }),
            "[endings] questions, context_words and ending_words must be at least 1, choices at least 2");
  const auto complaint = [&](const json& line) {
    const std::string path = folder.write("dev.jsonl", line.dump());
    return error_of([&] { read_questions(Benchmark::endings, path); }).substr(("[choice] " + path + ":1: ").size());
  };
  const json good = {{"context", "It was"}, {"endings", {"late.", "green."}}, {"label", 0}};
  EXPECT_EQ(read_questions(Benchmark::endings, folder.write("dev.jsonl", good.dump()))[0].choices[1].continuation,
            " green.");
  json bad = good;
  bad["label"] = 2;
  EXPECT_EQ(complaint(bad), "label is 2; expected a number within 0 and 1");
  bad = good;
  bad["endings"][1] = " ";
  EXPECT_EQ(complaint(bad), "endings has an empty element");
  bad.erase("context");
  EXPECT_EQ(complaint(bad), "context is missing");
}

}  // namespace
}  // namespace ovq::tasks
