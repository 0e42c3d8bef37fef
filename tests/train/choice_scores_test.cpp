#include "ovq/train/choice_scores.h"

#include <gtest/gtest.h>

#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

std::shared_ptr<models::LanguageModel> byte_model(const std::string& pattern) {
  const auto model = models::make_model(model_config(mini_run("recall", pattern), 256), 3);
  model->eval();
  return model;
}

tasks::Question question(std::string context, std::vector<std::string> continuations, int64_t answer) {
  tasks::Question question{.choices = {}, .answer = answer};
  for (std::string& text : continuations) question.choices.push_back({context, std::move(text)});
  return question;
}

// One choice at a time, token by token, by the formula.
double plain_log_likelihood(models::LanguageModel& model, const tasks::EncodedChoice& choice) {
  std::vector<int64_t> tokens(choice.context.begin(), choice.context.end());
  tokens.insert(tokens.end(), choice.continuation.begin(), choice.continuation.end());
  const at::Tensor logits = model.forward(torch::tensor(tokens, at::kLong).unsqueeze(0)).squeeze(0);
  const at::Tensor log_p = logits.to(at::kDouble).log_softmax(-1);
  double sum = 0;
  for (size_t i = choice.context.size(); i < tokens.size(); ++i) {
    sum += log_p[static_cast<int64_t>(i) - 1][tokens[i]].item<double>();
  }
  return sum;
}

TEST(ChoiceScores, LogLikelihoodsAreThoseOfEachChoiceAlone) {
  const torch::NoGradGuard no_grad;
  const auto tokenizer = text::make_byte_tokenizer();
  for (const char* pattern : {"sw-nope", "sw-ovq", "gdn"}) {
    const auto model = byte_model(pattern);
    std::vector<tasks::EncodedChoice> choices;
    for (const tasks::Choice& choice :
         question("Question: what is online?\nAnswer:", {" x", " a dictionary that is learned while reading", " no"}, 0)
             .choices) {
      choices.push_back(tasks::encode(choice, *tokenizer));
    }
    const std::vector<double> sums = log_likelihoods(*model, choices);
    ASSERT_EQ(sums.size(), 3u);
    for (size_t i = 0; i < sums.size(); ++i) {
      const double expected = plain_log_likelihood(*model, choices[i]);
      EXPECT_NEAR(sums[i], expected, 1e-4 * std::abs(expected)) << pattern << ", choice " << i;
    }
  }
}

// An untrained model finds every byte about equally unlikely, so the plain score prefers the short choice and the
// normalised one need not.
TEST(ChoiceScores, CountsBothKindsOfScore) {
  const auto tokenizer = text::make_byte_tokenizer();
  const auto model = byte_model("sw-nope");
  std::vector<tasks::Question> questions;
  for (int i = 0; i < 8; ++i) {
    const std::string word(static_cast<size_t>(i + 2), static_cast<char>('a' + i));
    questions.push_back(question("Q" + std::to_string(i), {" " + word + word + word + word, " " + word}, 1));
  }
  int64_t right_normalized = 0;
  for (const tasks::Question& asked : questions) {
    double scores[2];
    for (size_t i = 0; i < 2; ++i) {
      const tasks::EncodedChoice choice = tasks::encode(asked.choices[i], *tokenizer);
      scores[i] = plain_log_likelihood(*model, choice) / static_cast<double>(choice.characters);
    }
    right_normalized += scores[1] > scores[0];
  }
  const ChoiceScores scores = score_choices(*model, *tokenizer, questions);
  EXPECT_EQ(scores.questions, 8);
  EXPECT_EQ(scores.right, 8);
  EXPECT_EQ(scores.right_normalized, right_normalized);
}

TEST(ChoiceScores, BadInput) {
  const auto tokenizer = text::make_byte_tokenizer();
  const auto other = models::make_model(model_config(mini_run("recall", "nope"), 100), 0);
  EXPECT_THROW(score_choices(*other, *tokenizer, {question("a", {" b", " c"}, 0)}), std::invalid_argument);
  EXPECT_THROW(score_choices(*byte_model("nope"), *tokenizer, {}), std::invalid_argument);
  EXPECT_THROW(score_choices(*byte_model("nope"), *tokenizer, {question("", {"b", "c"}, 0)}), std::invalid_argument);
}

}  // namespace
}  // namespace ovq::train::test
