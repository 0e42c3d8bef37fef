#include "ovq/models/generate.h"

#include "ovq/base/error.h"

namespace ovq::models {

Generation::Generation(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
                       const GenerateOptions& options, const Session::Continuation& continuation)
    : session_(model, state), sampler_(options.sampling), options_(options) {
  check_fields("generate", options);
  const bool goes_on = continuation.logits.defined() && continuation.logits.numel() == model.config().vocab_size;
  check(!prompt.empty() || goes_on, "generate", "prompt is empty; must have at least one token");
  if (prompt.empty()) session_.set_continuation(continuation);
  for (const int64_t token : prompt) {
    check(token >= 0 && token < model.config().vocab_size, "generate", "prompt has token ", token,
          "; the vocabulary has ", model.config().vocab_size);
  }
  prompt_.assign(prompt.begin(), prompt.end());
}

std::optional<int64_t> Generation::next() {
  session_.read(prompt_, {.piece = options_.piece});
  prompt_.clear();
  if (given_ == options_.tokens) return std::nullopt;
  ++given_;
  return session_.next(sampler_);
}

std::vector<int64_t> generate(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& each) {
  Generation generation(model, state, prompt, options);
  std::vector<int64_t> tokens;
  while (const auto token = generation.next()) {
    tokens.push_back(*token);
    if (each && !each(*token)) break;
  }
  return tokens;
}

}  // namespace ovq::models
