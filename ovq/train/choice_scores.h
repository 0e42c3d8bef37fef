// How well a language model answers multiple-choice questions: each choice is scored by the log-likelihood of its
// continuation given its context, plain and divided by its characters; the best score is the model's answer.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ovq/models/language_model.h"
#include "ovq/tasks/choice.h"
#include "ovq/train/run.h"

namespace ovq::train {

struct ChoiceScores {
  int64_t questions = 0, right = 0, right_normalized = 0;

  double accuracy() const { return static_cast<double>(right) / static_cast<double>(questions); }
  double accuracy_normalized() const { return static_cast<double>(right_normalized) / static_cast<double>(questions); }
};

// Sum of log p(token | all before it) over the continuation, for each choice of one question.
std::vector<double> log_likelihoods(models::LanguageModel& model, const std::vector<tasks::EncodedChoice>& choices);

ChoiceScores score_choices(models::LanguageModel& model, const text::Tokenizer& tokenizer,
                           const std::vector<tasks::Question>& questions);

// A benchmark by name, from its published file, with the tokenizer of the run. The run must be on text.
ChoiceScores score_benchmark(const Run& run, const TrainedModel& trained, const std::string& benchmark,
                             const std::string& questions);

nlohmann::json to_json(const ChoiceScores& scores);

}  // namespace ovq::train
