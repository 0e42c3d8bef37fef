// The text of a set of experiments. The set says how it is cut into tokens ("corpus": {"vocab": 2048, "lines": 200000},
// the options of `ovq tokenize train`) and how many multiple-choice questions are made from valid/ ("questions": 1000,
// see tasks/endings.h); whoever makes the runs brings a folder with train/ and valid/, whose .txt files are documents.
// A sources.json beside these folders, any JSON that says where the text is from, goes into every result.
// Tokenizer, tokens and questions are made once, in runs/<set>/corpus of the working directory: the paths are among the
// options of the runs, and so the same everywhere.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "ovq/base/json_fields.h"
#include "ovq/text/tokenizer_training.h"

namespace ovq::experiments {

struct Corpus {
  text::TokenizerTraining tokenizer;
  int64_t questions = 0;  // that every run answers in the end
  std::filesystem::path directory;

  bool is_there() const;
  // train, test and tokenizer of the task `text`
  nlohmann::json task_options() const;
  std::filesystem::path questions_file() const;
  // DataError if it was made with other options or of other text; `data` may be empty.
  void check_source(const std::filesystem::path& data) const;
  // Makes what is not there from data/train and data/valid; `say` hears of every file. std::invalid_argument if the
  // folder has no train/ or valid/.
  void make(const std::filesystem::path& data, const std::function<void(const std::string&)>& say) const;
  // How it was made and what it holds, for results.
  nlohmann::json described() const;
};

// Whether two of these are of the same text; older ones say less of it.
bool same_text(const nlohmann::json& described, const nlohmann::json& other);

Corpus corpus_from_json(const nlohmann::json& object, const FieldPlace& place, const std::string& set);
// From what `described` said of it; without questions.
Corpus corpus_of_result(const nlohmann::json& described, const nlohmann::json& task_options);

}  // namespace ovq::experiments
