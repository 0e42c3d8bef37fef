// Generation: the model reads the prompt in pieces and then produces one token at a time. Memory is that of the state.
#pragma once

#include <functional>
#include <vector>

#include "ovq/models/session.h"

namespace ovq::models {

struct GenerateOptions {
  int64_t tokens = 64;
  SamplingOptions sampling;
  int64_t piece = 1024;
};

template <class Fields>
void list_fields(Fields& field, GenerateOptions& o) {
  field("tokens", o.tokens, "maximum number of tokens to generate", at_least(0));
  list_fields(field, o.sampling);
  field("piece", o.piece, "tokens of the prompt read at a time", at_least(1));
}

// Generates tokens on demand.
class Generation {
 public:
  // Continues `state` with `prompt`; model and state must outlive it. Options and prompt are checked here; the first
  // call of `next` reads the prompt. An empty prompt continues from `continuation`, where the state was left.
  Generation(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
             const GenerateOptions& options, const Session::Continuation& continuation = {});

  // The next token; nothing after the last one. The model has not read the returned token yet.
  std::optional<int64_t> next();
  Session::Continuation continuation() { return session_.continuation(); }  // reads the last token

 private:
  Session session_;
  Sampler sampler_;
  GenerateOptions options_;
  std::vector<int32_t> prompt_;
  int64_t given_ = 0;
};

// Continues `state` with prompt [T] and returns `tokens` new tokens. `each`, if given, receives every token as it is
// generated and stops the generation by returning false. The model has not read the last returned token yet.
std::vector<int64_t> generate(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& each = {});

}  // namespace ovq::models
