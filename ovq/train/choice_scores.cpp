#include "ovq/train/choice_scores.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ovq/base/error.h"
#include "ovq/train/checkpoint.h"

namespace ovq::train {

using at::Tensor;

std::vector<double> log_likelihoods(models::LanguageModel& model, const std::vector<tasks::EncodedChoice>& choices) {
  size_t longest = 0;
  for (const tasks::EncodedChoice& choice : choices) {
    check(!choice.context.empty(), "choice", "a context has no tokens; must have at least one");
    longest = std::max(longest, choice.context.size() + choice.continuation.size());
  }
  // Rows are padded at the end, where no earlier token can see the padding.
  const auto rows = static_cast<int64_t>(choices.size()), length = static_cast<int64_t>(longest);
  const Tensor tokens = at::zeros({rows, length}, at::kLong);
  std::vector<int64_t> positions, targets;
  for (int64_t row = 0; row < rows; ++row) {
    const tasks::EncodedChoice& choice = choices[static_cast<size_t>(row)];
    int64_t* to = tokens.data_ptr<int64_t>() + row * length;
    std::copy(choice.continuation.begin(), choice.continuation.end(),
              std::copy(choice.context.begin(), choice.context.end(), to));
    const auto first = static_cast<int64_t>(choice.context.size()) - 1;  // the first scored token follows this one
    for (size_t i = 0; i < choice.continuation.size(); ++i) {
      positions.push_back(row * length + first + static_cast<int64_t>(i));
      targets.push_back(choice.continuation[i]);
    }
  }
  const torch::NoGradGuard no_grad;
  const Tensor hidden = model.hidden(tokens).flatten(0, 1);
  const Tensor logits = model.logits(hidden.index_select(0, torch::tensor(positions, at::kLong)));
  const Tensor losses = at::cross_entropy_loss(logits, torch::tensor(targets, at::kLong), {}, at::Reduction::None);
  std::vector<double> sums;
  const float* loss = losses.data_ptr<float>();
  for (const tasks::EncodedChoice& choice : choices) {
    double sum = 0;
    for (size_t i = 0; i < choice.continuation.size(); ++i) sum -= *loss++;
    sums.push_back(sum);
  }
  return sums;
}

ChoiceScores score_choices(models::LanguageModel& model, const text::Tokenizer& tokenizer,
                           const std::vector<tasks::Question>& questions) {
  check(!questions.empty(), "choice", "the list of questions is empty");
  check(tokenizer.vocab() == model.config().vocab_size, "choice", "the tokenizer has ", tokenizer.vocab(),
        " tokens; the model has ", model.config().vocab_size);
  const bool was_training = model.is_training();
  model.eval();
  ChoiceScores scores;
  for (const tasks::Question& question : questions) {
    std::vector<tasks::EncodedChoice> choices;
    for (const tasks::Choice& choice : question.choices) choices.push_back(tasks::encode(choice, tokenizer));
    std::vector<double> sums = log_likelihoods(model, choices);
    const auto best = [&] { return std::max_element(sums.begin(), sums.end()) - sums.begin(); };
    ++scores.questions;
    scores.right += best() == question.answer;
    for (size_t i = 0; i < sums.size(); ++i)
      sums[i] /= static_cast<double>(std::max<int64_t>(1, choices[i].characters));
    scores.right_normalized += best() == question.answer;
  }
  model.train(was_training);
  return scores;
}

ChoiceScores score_benchmark(const Run& run, const TrainedModel& trained, const std::string& benchmark,
                             const std::string& questions) {
  const auto asked = tasks::read_questions(tasks::benchmark_from_name(benchmark), questions);
  const auto task = run.task();
  check(task->tokenizer() != nullptr, "choice", run.path().string(), " was trained on ", run.options().task,
        ", not on text");
  check_tokenizer(trained.checkpoint, *task->tokenizer());
  return score_choices(*trained.model, *task->tokenizer(), asked);
}

nlohmann::json to_json(const ChoiceScores& scores) {
  return {{"questions", scores.questions},
          {"accuracy", scores.accuracy()},
          {"accuracy_normalized", scores.accuracy_normalized()}};
}

}  // namespace ovq::train
