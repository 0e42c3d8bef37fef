#include "ovq/experiments/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "ovq/base/error.h"
#include "ovq/base/files/durable.h"
#include "ovq/tasks/endings.h"
#include "ovq/text/token_file.h"

namespace ovq::experiments {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kTokenizer = "tokenizer.model";
constexpr const char* kSource = "corpus.json";    // tokenizer options and source folder
constexpr const char* kSources = "sources.json";  // where the text is from, if the source folder says so

// A part of the data: its folder and the task option that names its token file.
struct CorpusSplit {
  const char* folder;
  const char* option;
  fs::path tokens(const fs::path& directory) const { return directory / (std::string(folder) + ".tokens"); }
};
constexpr std::array<CorpusSplit, 2> kSplits = {{{"train", "train"}, {"valid", "test"}}};

json sources_in(const fs::path& directory) {
  std::ifstream in(directory / kSources);
  if (!in) return {};
  const json sources = json::parse(in, nullptr, /*allow_exceptions=*/false);
  check_data(!sources.is_discarded(), "corpus", (directory / kSources).string(), " is not valid JSON");
  return sources;
}

}  // namespace

bool Corpus::is_there() const {
  bool all = fs::exists(directory / kTokenizer);
  for (const CorpusSplit& split : kSplits) all = all && fs::exists(split.tokens(directory));
  return all && (questions == 0 || fs::exists(questions_file()));
}

fs::path Corpus::questions_file() const { return directory / fmt::format("endings-{}.jsonl", questions); }

json Corpus::task_options() const {
  json options = {{"tokenizer", directory / kTokenizer}};
  for (const CorpusSplit& split : kSplits) options[split.option] = split.tokens(directory);
  return options;
}

void Corpus::check_source(const fs::path& data) const {
  std::ifstream in(directory / kSource);
  if (!in) return;  // not made yet, or by a version that did not store this
  const json source = json::parse(in, nullptr, /*allow_exceptions=*/false);
  check_data(source.is_object(), "corpus", (directory / kSource).string(), " is not valid JSON");
  const auto compare = [&](const char* name, const json& wanted) {
    const json found = source.value(name, json());
    check_data(found == wanted, "corpus", directory.string(), " has ", name, " ", found.dump(), "; ", wanted.dump(),
               " was requested; remove the directory to make the corpus again");
  };
  compare("made_with", fields_to_json(tokenizer));
  if (!data.empty()) compare("data", fs::weakly_canonical(data));
}

void Corpus::make(const fs::path& data, const std::function<void(const std::string&)>& say) const {
  for (const CorpusSplit& split : kSplits) {
    check(fs::is_directory(data / split.folder), "corpus", data.string(), " has no folder ", split.folder,
          "/; must have train/ and valid/ with .txt files");
  }
  fs::create_directories(directory);
  check_source(data);
  const json source = {{"made_with", fields_to_json(tokenizer)}, {"data", fs::weakly_canonical(data)}};
  if (!fs::exists(directory / kSource)) files::write_file_durably(directory / kSource, source.dump(2) + "\n");
  if (const json sources = sources_in(data); !sources.is_null())
    files::write_file_durably(directory / kSources, sources.dump(2) + "\n");
  const fs::path model = directory / kTokenizer;
  if (!fs::exists(model)) {
    files::write_file_durably(model, text::train_tokenizer({(data / kSplits[0].folder).string()}, tokenizer));
    say(fmt::format("{}: {} tokens", model.string(), tokenizer.vocab));
  }
  const auto made = text::make_tokenizer(model);
  for (const CorpusSplit& split : kSplits) {
    const fs::path file = split.tokens(directory);
    if (fs::exists(file)) continue;
    const auto report = text::write_token_file(file, *made, {(data / split.folder).string()});
    say(fmt::format("{}: {} tokens of {} documents", file.string(), report.tokens, report.documents));
  }
  if (questions > 0 && !fs::exists(questions_file())) {
    files::write_file_durably(questions_file(),
                              tasks::make_endings({(data / kSplits[1].folder).string()}, {.questions = questions}));
    say(fmt::format("{}: {} questions", questions_file().string(), questions));
  }
}

json Corpus::described() const {
  json object = {{"made_with", fields_to_json(tokenizer)},
                 {"tokenizer", text::make_tokenizer(directory / kTokenizer)->identity()}};
  for (const CorpusSplit& split : kSplits) {
    const text::TokenFile file(split.tokens(directory));
    int64_t bytes = 0;
    for (const text::TokenDocument& document : file.documents()) bytes += document.text_bytes;
    object[split.folder] = {{"tokens", file.tokens()}, {"documents", file.documents().size()}, {"bytes", bytes}};
  }
  if (const json sources = sources_in(directory); !sources.is_null()) object["sources"] = sources;
  return object;
}

bool same_text(const json& described, const json& other) {
  const auto sizes = [](const json& all, const CorpusSplit& split) {
    const json of_part = all.value(split.folder, json::object());
    return std::pair(of_part.value("tokens", int64_t{0}), of_part.value("documents", int64_t{0}));
  };
  return described.value("tokenizer", "") == other.value("tokenizer", "") &&
         std::all_of(kSplits.begin(), kSplits.end(),
                     [&](const CorpusSplit& split) { return sizes(described, split) == sizes(other, split); });
}

Corpus corpus_from_json(const json& object, const FieldContext& context, const std::string& set) {
  Corpus corpus{.directory = fs::path("runs") / set / "corpus"};
  FieldReader reader(object, context);
  reader.read(corpus.tokenizer);
  reader("questions", corpus.questions, "", at_least(0));
  reader.finish();
  return corpus;
}

Corpus corpus_of_result(const json& described, const json& task_options) {
  Corpus corpus{.directory = fs::path(task_options.at("tokenizer").get<std::string>()).parent_path()};
  FieldReader reader(described.at("made_with"), FieldContext{.op = "result", .path = "corpus.made_with"});
  reader.read(corpus.tokenizer);
  reader.finish();
  return corpus;
}

}  // namespace ovq::experiments
