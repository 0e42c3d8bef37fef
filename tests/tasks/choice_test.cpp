#include "ovq/tasks/choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tasks/fixtures.h"
#include "tests/text/sentencepiece_model.h"

namespace ovq::tasks {
namespace {

using nlohmann::json;
using test::error_of;

const json kPiqa = {{"goal", "Open a jar."}, {"sol1", "Turn the lid."}, {"sol2", "Eat the lid."}, {"label", 0}};
const json kHellaswag = {{"activity_label", "Making tea"},
                         {"ctx_a", "[header] How to make tea [title] Boil water. [step] Fill a kettle."},
                         {"ctx_b", "the Kettle"},
                         {"endings", {" is  put on the stove. ", "sings [substeps] a song.", "runs.", "is tea."}},
                         {"label", "0"}};
const json kWinogrande = {{"sentence", "The cup did not fit in the box because _ was too large."},
                          {"option1", "the cup"},
                          {"option2", "the box"},
                          {"answer", "1"}};
const json kArc = {
    {"id", "x"},
    {"question",
     {{"stem", "What is hot?"}, {"choices", {{{"text", "ice"}, {"label", "A"}}, {{"text", "fire"}, {"label", "B"}}}}}},
    {"answerKey", "B"}};
const json kArcLists = {{"question", "What is hot?"},
                        {"choices", {{"text", {"ice", "fire", "snow"}}, {"label", {"1", "2", "3"}}}},
                        {"answerKey", "2"}};

class ChoiceFiles : public testing::Test {
 protected:
  std::string write(const json& line) const { return folder_.write("dev.jsonl", "\n" + line.dump() + "\n"); }

  Question read(Benchmark benchmark, const json& line) const {
    const std::vector<Question> questions = read_questions(benchmark, write(line));
    EXPECT_EQ(questions.size(), 1u);
    return questions.at(0);
  }

  // The error for `line`, without file name and line number.
  std::string error(Benchmark benchmark, const json& line) const {
    const std::string path = write(line);
    const std::string message = error_of([&] { read_questions(benchmark, path); });
    const std::string start = "[choice] " + path + ":2: ";
    EXPECT_EQ(message.find(start), 0u) << message;
    return message.substr(std::min(start.size(), message.size()));
  }

  // `line` with one field, or one field of a field, set or (null) removed.
  static json with(json line, const std::string& pointer, const json& value) {
    const json::json_pointer at(pointer);
    if (value.is_null())
      line[at.parent_pointer()].erase(at.back());
    else
      line[at] = value;
    return line;
  }

  // Checks the errors for a field that is missing, a number, or blank.
  void expect_text_field(Benchmark benchmark, const json& line, const std::string& pointer,
                         const std::string& name) const {
    EXPECT_EQ(error(benchmark, with(line, pointer, nullptr)), name + " is missing");
    EXPECT_EQ(error(benchmark, with(line, pointer, 7)), name + " is a number; expected a text");
    EXPECT_EQ(error(benchmark, with(line, pointer, " ")), name + " is empty");
  }

  test::Folder folder_;
};

TEST_F(ChoiceFiles, Piqa) {
  const Question question = read(Benchmark::piqa, kPiqa);
  ASSERT_EQ(question.choices.size(), 2u);
  EXPECT_EQ(question.choices[0].context, "Question: Open a jar.\nAnswer:");
  EXPECT_EQ(question.choices[1].context, question.choices[0].context);
  EXPECT_EQ(question.choices[0].continuation, " Turn the lid.");
  EXPECT_EQ(question.choices[1].continuation, " Eat the lid.");
  EXPECT_EQ(question.answer, 0);
}

TEST_F(ChoiceFiles, PiqaWithAFileOfLabels) {
  const json line = with(kPiqa, "/label", nullptr);
  const std::string path = folder_.write("valid.jsonl", line.dump() + "\r\n" + line.dump() + "\r\n");
  folder_.write("valid-labels.lst", "1\n0\n");
  const std::vector<Question> questions = read_questions(Benchmark::piqa, path);
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].answer, 1);
  EXPECT_EQ(questions[1].answer, 0);
  folder_.write("valid-labels.lst", "1\n");
  EXPECT_EQ(error_of([&] { read_questions(Benchmark::piqa, path); }),
            "[choice] " + path + ":2: label is missing; the labels' file has only 1");
  folder_.write("valid-labels.lst", "1\n2\n");
  EXPECT_EQ(error_of([&] { read_questions(Benchmark::piqa, path); }),
            "[choice] " + path + ":2: label is \"2\"; expected a number within 0 and 1");
}

TEST_F(ChoiceFiles, BadPiqa) {
  for (const std::string field : {"goal", "sol1", "sol2"})
    expect_text_field(Benchmark::piqa, kPiqa, "/" + field, field);
  EXPECT_EQ(error(Benchmark::piqa, with(kPiqa, "/label", nullptr)), "label is missing");
  EXPECT_EQ(error(Benchmark::piqa, with(kPiqa, "/label", 2)), "label is 2; expected a number within 0 and 1");
  EXPECT_EQ(error(Benchmark::piqa, with(kPiqa, "/label", -1)), "label is -1; expected a number within 0 and 1");
}

TEST_F(ChoiceFiles, Hellaswag) {
  const Question question = read(Benchmark::hellaswag, kHellaswag);
  ASSERT_EQ(question.choices.size(), 4u);
  EXPECT_EQ(question.choices[0].context, "Making tea: How to make tea. Boil water. Fill a kettle. The kettle");
  EXPECT_EQ(question.choices[0].continuation, " is put on the stove.");
  EXPECT_EQ(question.choices[1].continuation, " sings a song.");
  EXPECT_EQ(question.answer, 0);
  const Question no_b = read(Benchmark::hellaswag, with(with(kHellaswag, "/ctx_b", ""), "/label", 3));
  EXPECT_EQ(no_b.choices[0].context, "Making tea: How to make tea. Boil water. Fill a kettle.");
  EXPECT_EQ(no_b.answer, 3);
}

TEST_F(ChoiceFiles, BadHellaswag) {
  const auto complaint = [&](const std::string& pointer, const json& value) {
    return error(Benchmark::hellaswag, with(kHellaswag, pointer, value));
  };
  expect_text_field(Benchmark::hellaswag, kHellaswag, "/activity_label", "activity_label");
  EXPECT_EQ(complaint("/ctx_a", nullptr), "ctx_a is missing");
  EXPECT_EQ(complaint("/ctx_b", 7), "ctx_b is a number; expected a text");
  EXPECT_EQ(complaint("/endings", nullptr), "endings is missing");
  EXPECT_EQ(complaint("/endings", "one"), "endings is \"one\"; expected a list of two or more");
  EXPECT_EQ(complaint("/endings", json::array({"one"})), "endings is [\"one\"]; expected a list of two or more");
  EXPECT_EQ(complaint("/endings/1", 7), "endings is a number; expected a text");
  EXPECT_EQ(complaint("/endings/1", "[step]"), "endings has an empty element");
  EXPECT_EQ(complaint("/label", nullptr), "label is missing");
  EXPECT_EQ(complaint("/label", ""), "label is \"\"; expected a number within 0 and 3");
  EXPECT_EQ(complaint("/label", 4), "label is 4; expected a number within 0 and 3");
}

TEST_F(ChoiceFiles, WinograndeScoresWhatFollowsTheBlank) {
  const Question question = read(Benchmark::winogrande, kWinogrande);
  ASSERT_EQ(question.choices.size(), 2u);
  EXPECT_EQ(question.choices[0].context, "The cup did not fit in the box because the cup");
  EXPECT_EQ(question.choices[1].context, "The cup did not fit in the box because the box");
  EXPECT_EQ(question.choices[0].continuation, " was too large.");
  EXPECT_EQ(question.choices[1].continuation, " was too large.");
  EXPECT_EQ(question.answer, 0);
  EXPECT_EQ(read(Benchmark::winogrande, with(kWinogrande, "/answer", "2")).answer, 1);
}

TEST_F(ChoiceFiles, BadWinogrande) {
  for (const std::string field : {"sentence", "option1", "option2"}) {
    expect_text_field(Benchmark::winogrande, kWinogrande, "/" + field, field);
  }
  const auto complaint = [&](const std::string& pointer, const json& value) {
    return error(Benchmark::winogrande, with(kWinogrande, pointer, value));
  };
  EXPECT_EQ(complaint("/sentence", "No blank."), "sentence has no blank \"_\"");
  EXPECT_EQ(complaint("/sentence", "It is _ "), "sentence ends with its blank; must continue after it to be scored");
  EXPECT_EQ(complaint("/answer", nullptr), "answer is missing");
  EXPECT_EQ(complaint("/answer", "0"), "answer is \"0\"; expected a number within 1 and 2");
  EXPECT_EQ(complaint("/answer", ""), "answer is \"\"; expected a number within 1 and 2");
}

TEST_F(ChoiceFiles, Arc) {
  for (const json& line : {kArc, kArcLists}) {
    const Question question = read(Benchmark::arc, line);
    ASSERT_EQ(question.choices.size(), line == kArc ? 2u : 3u);
    EXPECT_EQ(question.choices[0].context, "Question: What is hot?\nAnswer:");
    EXPECT_EQ(question.choices[0].continuation, " ice");
    EXPECT_EQ(question.choices[1].continuation, " fire");
    EXPECT_EQ(question.answer, 1);
  }
}

TEST_F(ChoiceFiles, BadArc) {
  const auto complaint = [&](const json& line, const std::string& pointer, const json& value) {
    return error(Benchmark::arc, with(line, pointer, value));
  };
  expect_text_field(Benchmark::arc, kArc, "/question/stem", "question.stem");
  EXPECT_EQ(complaint(kArc, "/question", nullptr), "question is missing");
  EXPECT_EQ(complaint(kArc, "/question", 7), "question is a number; expected a text");
  EXPECT_EQ(complaint(kArc, "/question/choices", nullptr), "question.choices is missing");
  EXPECT_EQ(complaint(kArc, "/question/choices", 1), "question.choices is 1; expected a list of two or more");
  EXPECT_EQ(complaint(kArc, "/question/choices/0", 1), "question.choices has an element without text");
  EXPECT_EQ(complaint(kArc, "/question/choices/0/text", nullptr), "question.choices has an element without text");
  EXPECT_EQ(complaint(kArc, "/question/choices/0/text", 1), "question.choices.text is a number; expected a text");
  EXPECT_EQ(complaint(kArc, "/question/choices/0/text", ""), "choices has an empty text");
  EXPECT_EQ(complaint(kArc, "/question/choices/0/label", nullptr), "question.choices has an element without label");
  EXPECT_EQ(complaint(kArc, "/answerKey", nullptr), "answerKey is missing");
  EXPECT_EQ(complaint(kArc, "/answerKey", "C"), "answerKey is \"C\"; must be one of the labels");
  EXPECT_EQ(complaint(kArc, "/answerKey", 2), "answerKey is a number; expected a text");
  EXPECT_EQ(complaint(kArcLists, "/choices", nullptr), "choices.text is missing");
  EXPECT_EQ(complaint(kArcLists, "/choices/label", nullptr), "choices.label is missing");
  EXPECT_EQ(complaint(kArcLists, "/choices/label", json::array({"1", "2"})), "choices has 3 texts and 2 labels");
}

TEST_F(ChoiceFiles, BadFiles) {
  const auto complaint = [&](const std::string& path) {
    return error_of([&] { read_questions(Benchmark::arc, path); });
  };
  const std::string none = folder_.path("none.jsonl");
  EXPECT_EQ(complaint(none), "[choice] " + none + " cannot be read; expected a file");
  EXPECT_EQ(complaint(folder_.path()), "[choice] " + folder_.path() + " cannot be read; expected a file");
  const std::string empty = folder_.write("empty.jsonl", "");
  EXPECT_EQ(complaint(empty), "[choice] " + empty + " is empty");
  const std::string blank = folder_.write("blank.jsonl", "\n \n");
  EXPECT_EQ(complaint(blank), "[choice] " + blank + " has no questions");
  const std::string broken = folder_.write("broken.jsonl", kArc.dump() + "\n{\"question\": ");
  EXPECT_EQ(complaint(broken), "[choice] " + broken + ":2: is not a JSON object");
  const std::string list = folder_.write("list.jsonl", "[1]");
  EXPECT_EQ(complaint(list), "[choice] " + list + ":1: is not a JSON object");
}

TEST(ChoiceEncode, SplitsWhereTheContextEnds) {
  const auto tokenizer = text::make_byte_tokenizer();
  const EncodedChoice encoded = encode({.context = "Why \n", .continuation = " caf\xc3\xa9"}, *tokenizer);
  EXPECT_EQ(tokenizer->decode(encoded.context), "Why");
  EXPECT_EQ(tokenizer->decode(encoded.continuation), " \n caf\xc3\xa9");
  EXPECT_EQ(encoded.bytes, 5);
  EXPECT_EQ(encoded.characters, 4);
}

TEST(ChoiceEncode, SentencePiece) {
  const test::Folder folder;
  const auto tokenizer = text::make_tokenizer(ovq::test::train_sentencepiece(folder));
  const Choice choice{.context = "The whale", .continuation = " went under."};
  const EncodedChoice encoded = encode(choice, *tokenizer);
  std::vector<int32_t> whole = encoded.context;
  whole.insert(whole.end(), encoded.continuation.begin(), encoded.continuation.end());
  EXPECT_EQ(whole, tokenizer->encode(choice.context + choice.continuation));
  EXPECT_EQ(tokenizer->decode(encoded.context), "The whale");
  EXPECT_GT(encoded.continuation.size(), 0u);
}

TEST(ChoiceNames, Benchmarks) {
  EXPECT_EQ(benchmark_from_name("winogrande"), Benchmark::winogrande);
  EXPECT_EQ(error_of([] { benchmark_from_name("hellaswap"); }),
            "[choice] unknown benchmark \"hellaswap\"; did you mean \"hellaswag\"?");
}

}  // namespace
}  // namespace ovq::tasks
