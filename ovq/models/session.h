// A model in the middle of a sequence of tokens: it reads some, then says one after the other what follows. Memory is
// that of the state, however much was read.
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
  std::function<bool(int64_t tokens)> each;  // may be empty; told after each piece how many are read; false: stop
};

class Session {
 public:
  // Continues `state`, in place. Both must outlive it.
  Session(LanguageModel& model, ModelState& state) : model_(model), state_(state) {}

  // Appends tokens; std::invalid_argument if the vocabulary lacks one. Returns how many were read.
  int64_t read(std::span<const int32_t> tokens, const ReadOptions& options = {});

  // Chooses the next token. It is read only when something follows it: `settle` makes up for that.
  int32_t next(Sampler& sampler);
  void settle();

  // Tokens read and chosen.
  int64_t position() const { return state_.position() + (chosen_ ? 1 : 0); }
  // Of what comes next, [vocabulary]; of the last token that was chosen, until it is read. None before the first token.
  std::span<const float> logits() const;
  // Tokens of the last read() that `each` stopped it before.
  int64_t unread() const { return unread_; }
  // The last tokens, at most kMostRecent.
  std::span<const int32_t> recent() const { return recent_; }

  // All that is needed to continue from here, besides the state; see state_file.h.
  struct Continuation {
    Tensor logits;
    std::vector<int32_t> recent;
    int64_t unread = 0;  // tokens of the last read() that it was stopped before
  };
  Continuation continuation();  // settles first
  void set_continuation(Continuation continuation);

 private:
  void remember(std::span<const int32_t> tokens);

  LanguageModel& model_;
  ModelState& state_;
  Tensor logits_;                  // [vocabulary]; undefined before the first token
  std::optional<int32_t> chosen_;  // and not read yet
  std::vector<int32_t> recent_;
  int64_t unread_ = 0;
};

}  // namespace ovq::models
