#include "ovq/models/generate.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "ovq/base/error.h"

namespace ovq::models {
namespace {

int64_t choose(Tensor logits, const GenerateOptions& options, at::Generator& generator) {
  if (options.temperature == 0) return logits.argmax(-1).item<int64_t>();
  logits = logits / options.temperature;
  if (options.top_k > 0 && options.top_k < logits.size(-1)) {
    const Tensor least = std::get<0>(logits.topk(options.top_k)).min();
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  return at::multinomial(logits.softmax(-1), 1, false, generator).item<int64_t>();
}

}  // namespace

Tensor prefill(LanguageModel& model, ModelState& state, const Tensor& tokens, int64_t piece) {
  const torch::NoGradGuard no_grad;
  Tensor last;
  for (int64_t first = 0; first < tokens.size(1); first += piece) {
    const Tensor hidden = model.hidden(tokens.narrow(1, first, std::min(piece, tokens.size(1) - first)), state);
    last = hidden.narrow(1, hidden.size(1) - 1, 1);
  }
  return last;
}

std::vector<int64_t> generate(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& each) {
  check(!prompt.empty(), "generate", "prompt is empty; must have at least one token");
  check(options.tokens >= 0, "generate", "tokens is ", options.tokens, "; must be at least 0");
  check(options.top_k >= 0, "generate", "top_k is ", options.top_k, "; must be at least 1, or 0 for all");
  check(options.temperature >= 0, "generate", "temperature is ", options.temperature, "; must be at least 0");
  check(options.piece >= 1, "generate", "piece is ", options.piece, "; must be at least 1");
  for (const int64_t token : prompt) {
    check(token >= 0 && token < model.config().vocab_size, "generate", "prompt has token ", token,
          "; the vocabulary has ", model.config().vocab_size);
  }
  const torch::NoGradGuard no_grad;
  model.eval();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  Tensor hidden = prefill(model, state, torch::tensor(prompt, at::kLong).unsqueeze(0), options.piece);
  std::vector<int64_t> tokens;
  while (static_cast<int64_t>(tokens.size()) < options.tokens) {
    const int64_t next = choose(model.logits(hidden).flatten(), options, generator);
    tokens.push_back(next);
    if (each && !each(next)) break;
    if (static_cast<int64_t>(tokens.size()) == options.tokens) break;
    hidden = model.step(torch::tensor({next}, at::kLong).unsqueeze(0), state);
  }
  return tokens;
}

}  // namespace ovq::models
