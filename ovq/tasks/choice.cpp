#include "ovq/tasks/choice.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "ovq/base/closest.h"
#include "ovq/base/error.h"
#include "ovq/base/json_lines.h"
#include "ovq/text/documents.h"

namespace ovq::tasks {

using nlohmann::json;

namespace {

constexpr std::string_view kSpaces = " \t\n\r\f\v";

std::string_view strip(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// First letter upper case, all others lower; ASCII only, like the data.
std::string capitalize(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool upper = text[i] >= 'A' && text[i] <= 'Z', lower = text[i] >= 'a' && text[i] <= 'z';
    if (i == 0 && lower) text[i] = static_cast<char>(text[i] - 'a' + 'A');
    if (i > 0 && upper) text[i] = static_cast<char>(text[i] - 'A' + 'a');
  }
  return text;
}

// HellaSwag's texts from WikiHow carry marks such as [title] and [step].
std::string clean(std::string_view raw) {
  std::string text(strip(raw));
  replace_all(text, " [title]", ". ");
  for (size_t open = text.find('['); open != std::string::npos; open = text.find('[', open)) {
    const size_t close = text.find_first_of("]\n", open);
    if (close != std::string::npos && text[close] == ']')
      text.erase(open, close - open + 1);
    else
      ++open;
  }
  replace_all(text, "  ", " ");
  return text;
}

// One line of a file, with checks that name it in errors.
struct Line {
  const std::string& path;
  int64_t number = 0;
  json object;

  template <class... Parts>
  [[noreturn]] void bad(const Parts&... parts) const {
    fail_data("choice", path, ":", number, ": ", parts...);
  }

  // `field` is a path such as "question.stem".
  const json& at(const std::string& field) const {
    const json* value = &object;
    for (size_t start = 0; start <= field.size();) {
      const size_t end = std::min(field.find('.', start), field.size());
      const std::string name = field.substr(start, end - start);
      if (!value->is_object() || !value->contains(name)) bad(field, " is missing");
      value = &(*value)[name];
      start = end + 1;
    }
    return *value;
  }

  std::string text(const std::string& field, const json& value) const {
    if (!value.is_string()) bad(field, " is a ", value.type_name(), "; expected a text");
    return value.get<std::string>();
  }
  std::string text(const std::string& field) const { return text(field, at(field)); }

  std::string filled_text(const std::string& field) const {
    std::string value = text(field);
    if (strip(value).empty()) bad(field, " is empty");
    return value;
  }

  const json& list(const std::string& field) const {
    const json& value = at(field);
    if (!value.is_array() || value.size() < 2) bad(field, " is ", value.dump(), "; expected a list of two or more");
    return value;
  }

  // Reads an integer in [first, first + count), also as text, and returns its offset from `first`.
  int64_t index(const std::string& field, const json& value, int64_t first, int64_t count) const {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    for (int64_t i = 0; i < count; ++i) {
      if (shown == std::to_string(first + i)) return i;
    }
    bad(field, " is ", value.dump(), "; expected a number within ", first, " and ", first + count - 1);
  }
};

Question piqa(const Line& line, const std::optional<json>& label) {
  const std::string context = "Question: " + line.filled_text("goal") + "\nAnswer:";
  Question question{.choices = {{context, " " + line.filled_text("sol1")}, {context, " " + line.filled_text("sol2")}}};
  question.answer = line.index("label", label ? *label : line.at("label"), 0, 2);
  return question;
}

Question hellaswag(const Line& line) {
  const std::string start = line.filled_text("activity_label") + ": " + line.text("ctx_a") + " ";
  const std::string context = clean(start + capitalize(line.text("ctx_b")));
  Question question;
  const json& endings = line.list("endings");
  for (const json& ending : endings) {
    const std::string text = clean(line.text("endings", ending));
    if (text.empty()) line.bad("endings has an empty element");
    question.choices.push_back({context, " " + text});
  }
  question.answer = line.index("label", line.at("label"), 0, static_cast<int64_t>(endings.size()));
  return question;
}

Question winogrande(const Line& line) {
  const std::string sentence = line.filled_text("sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) line.bad("sentence has no blank \"_\"");
  const std::string_view rest = strip(std::string_view(sentence).substr(blank + 1));
  if (rest.empty()) line.bad("sentence ends with its blank; must continue after it to be scored");
  Question question;
  for (const char* option : {"option1", "option2"}) {
    question.choices.push_back({sentence.substr(0, blank) + line.filled_text(option), " " + std::string(rest)});
  }
  question.answer = line.index("answer", line.at("answer"), 1, 2);
  return question;
}

Question endings(const Line& line) {
  const std::string context = line.filled_text("context");
  Question question;
  const json& texts = line.list("endings");
  for (const json& ending : texts) {
    const std::string text(strip(line.text("endings", ending)));
    if (text.empty()) line.bad("endings has an empty element");
    question.choices.push_back({context, " " + text});
  }
  question.answer = line.index("label", line.at("label"), 0, static_cast<int64_t>(texts.size()));
  return question;
}

// The choices come either as published by the authors (question.stem, question.choices) or as lists beside the question
// (choices.text, choices.label).
Question arc(const Line& line) {
  const bool published = line.at("question").is_object();
  const std::string stem = line.filled_text(published ? "question.stem" : "question");
  std::vector<std::string> texts, labels;
  if (published) {
    for (const json& choice : line.list("question.choices")) {
      if (!choice.is_object() || !choice.contains("text")) line.bad("question.choices has an element without text");
      if (!choice.contains("label")) line.bad("question.choices has an element without label");
      texts.push_back(line.text("question.choices.text", choice["text"]));
      labels.push_back(line.text("question.choices.label", choice["label"]));
    }
  } else {
    for (const json& text : line.list("choices.text")) texts.push_back(line.text("choices.text", text));
    for (const json& label : line.list("choices.label")) labels.push_back(line.text("choices.label", label));
    if (texts.size() != labels.size()) line.bad("choices has ", texts.size(), " texts and ", labels.size(), " labels");
  }
  Question question;
  for (const std::string& text : texts) {
    if (strip(text).empty()) line.bad("choices has an empty text");
    question.choices.push_back({"Question: " + stem + "\nAnswer:", " " + text});
  }
  const std::string key = line.text("answerKey");
  const auto found = std::find(labels.begin(), labels.end(), key);
  if (found == labels.end()) line.bad("answerKey is \"", key, "\"; must be one of the labels");
  question.answer = found - labels.begin();
  return question;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.emplace_back(strip(std::string_view(text).substr(start, end - start)));
    start = end + 1;
  }
  return lines;
}

// The i-th line of <name>-labels.lst belongs to the i-th of <name>.jsonl.
std::vector<std::string> piqa_labels(const std::string& path) {
  std::filesystem::path labels(path);
  labels.replace_filename(labels.stem().string() + "-labels.lst");
  if (!std::filesystem::exists(labels)) return {};
  return split_lines(text::read_text_file("choice", labels.string()));
}

constexpr const char* kNames[] = {"piqa", "hellaswag", "winogrande", "arc", "endings"};

}  // namespace

std::vector<std::string> benchmark_names() { return {std::begin(kNames), std::end(kNames)}; }

Benchmark benchmark_from_name(const std::string& name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  check(found != std::end(kNames), "choice", unknown_name("benchmark", name, benchmark_names()));
  return static_cast<Benchmark>(found - std::begin(kNames));
}

std::vector<Question> read_questions(Benchmark benchmark, const std::string& path) {
  const std::vector<std::string> labels = benchmark == Benchmark::piqa ? piqa_labels(path) : std::vector<std::string>();
  std::vector<Question> questions;
  for (JsonLine& found : json_lines(text::read_text_file("choice", path))) {
    const Line line{.path = path, .number = found.number, .object = std::move(found.object)};
    if (line.object.is_discarded()) line.bad("is not a JSON object");
    switch (benchmark) {
      case Benchmark::piqa: {
        std::optional<json> label;
        if (!line.object.contains("label") && !labels.empty()) {
          const auto i = static_cast<size_t>(line.number) - 1;
          if (i >= labels.size()) line.bad("label is missing; the labels' file has only ", labels.size());
          label = labels[i];
        }
        questions.push_back(piqa(line, label));
        break;
      }
      case Benchmark::hellaswag:
        questions.push_back(hellaswag(line));
        break;
      case Benchmark::winogrande:
        questions.push_back(winogrande(line));
        break;
      case Benchmark::arc:
        questions.push_back(arc(line));
        break;
      case Benchmark::endings:
        questions.push_back(endings(line));
        break;
    }
  }
  check_data(!questions.empty(), "choice", path, " has no questions");
  return questions;
}

EncodedChoice encode(const Choice& choice, const text::Tokenizer& tokenizer) {
  const size_t kept = choice.context.find_last_not_of(kSpaces) + 1;  // npos + 1 = 0
  const std::string context = choice.context.substr(0, kept);
  std::string_view scored = choice.continuation;
  if (scored.starts_with(' ')) scored.remove_prefix(1);
  EncodedChoice encoded{.context = tokenizer.encode(context)};
  const std::vector<int32_t> whole = tokenizer.encode(choice.context + choice.continuation);
  const auto context_tokens = std::min(encoded.context.size(), whole.size());
  encoded.continuation.assign(whole.begin() + static_cast<int64_t>(context_tokens), whole.end());
  encoded.bytes = static_cast<int64_t>(scored.size());
  encoded.characters = std::count_if(scored.begin(), scored.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return encoded;
}

}  // namespace ovq::tasks
