// The text of a set of experiments. The set gives the options of its tokenizer ("corpus": {"vocab": 2048, "lines":
// 200000}, as in `ovq tokenize train`) and the number of multiple-choice questions made from valid/ ("questions": 1000,
// see tasks/endings.h). The user supplies a folder with train/ and valid/, whose .txt files are documents. An optional
// sources.json beside them, any JSON that says where the text is from, goes into every result. Tokenizer, tokens and
// questions are made once, in runs/<set>/corpus of the working directory. Their paths are options of the runs, and
// relative so that they are the same everywhere.
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
  int64_t questions = 0;  // each run answers them after its evaluations
  std::filesystem::path directory;

  bool is_there() const;
  // The options train, test and tokenizer of the task `text`.
  nlohmann::json task_options() const;
  std::filesystem::path questions_file() const;
  // DataError if the corpus was made with other options or from another folder. `data` may be empty.
  void check_source(const std::filesystem::path& data) const;
  // Makes the missing files from data/train and data/valid; `say` receives a line for each. std::invalid_argument if
  // the folder has no train/ or valid/.
  void make(const std::filesystem::path& data, const std::function<void(const std::string&)>& say) const;
  // How the corpus was made and what it holds, for results.
  nlohmann::json described() const;
};

// Whether two descriptions are of the same text; older ones have fewer fields.
bool same_text(const nlohmann::json& described, const nlohmann::json& other);

Corpus corpus_from_json(const nlohmann::json& object, const FieldContext& context, const std::string& set);
// The corpus that `described` describes, without questions.
Corpus corpus_of_result(const nlohmann::json& described, const nlohmann::json& task_options);

}  // namespace ovq::experiments
