// Tokens from a model: the prompt is read in pieces, then one token at a time follows; memory is that of the state.
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

// Tokens as they are asked for.
class Generation {
 public:
  // Continues `state` with `prompt`; model and state must outlive it. Options and prompt are checked here, the prompt
  // is read by the first call of `next`. An empty prompt goes on from `place`, where the state was left.
  Generation(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
             const GenerateOptions& options, const Session::Continuation& continuation = {});

  // Nothing after the last one, which has not been read yet.
  std::optional<int64_t> next();
  Session::Continuation continuation() { return session_.continuation(); }  // reads the last token

 private:
  Session session_;
  Sampler sampler_;
  GenerateOptions options_;
  std::vector<int32_t> prompt_;
  int64_t given_ = 0;
};

// Continues `state` with prompt [T] and appends `tokens` new ones, which it returns; `each`, if given, sees each as it
// comes and stops the generation by returning false. The last token returned has not been read yet.
std::vector<int64_t> generate(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& each = {});

}  // namespace ovq::models
