// A model in the middle of a sequence of tokens: it reads tokens and generates the following ones. Memory is that of
// the state, however many tokens were read.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ovq/models/language_model.h"
#include "ovq/models/sampling.h"

namespace ovq::models {

struct ReadOptions {
  int64_t piece = 1024;                      // tokens read at a time
  std::function<bool(int64_t tokens)> each;  // may be empty; called after each piece with the tokens read; false: stop
};

class Session {
 public:
  // Continues `state`, in place. Both must outlive it.
  Session(LanguageModel& model, ModelState& state) : model_(model), state_(state) {}

  // Appends tokens; std::invalid_argument if the vocabulary lacks one. Returns how many were read.
  int64_t read(std::span<const int32_t> tokens, const ReadOptions& options = {});

  // Chooses the next token. The model reads it only when another token follows, or in `settle`.
  int32_t next(Sampler& sampler);
  void settle();

  // Number of tokens read and chosen.
  int64_t position() const { return state_.position() + (chosen_ ? 1 : 0); }
  // Logits of the next token, [vocabulary]; of the last chosen token until the model reads it. Empty before the first
  // token.
  std::span<const float> logits() const;
  // Number of tokens that the last read() left unread because `each` stopped it.
  int64_t unread() const { return unread_; }
  // The last tokens, at most kMostRecent.
  std::span<const int32_t> recent() const { return recent_; }

  // All that is needed to continue from here, besides the state; see state_file.h.
  struct Continuation {
    Tensor logits;
    std::vector<int32_t> recent;
    int64_t unread = 0;  // tokens that the last read() left unread
  };
  Continuation continuation();  // settles first
  void set_continuation(Continuation continuation);

 private:
  void remember(std::span<const int32_t> tokens);

  LanguageModel& model_;
  ModelState& state_;
  Tensor logits_;                  // [vocabulary]; undefined before the first token
  std::optional<int32_t> chosen_;  // chosen but not read yet
  std::vector<int32_t> recent_;
  int64_t unread_ = 0;
};

}  // namespace ovq::models
