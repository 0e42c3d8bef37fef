#include "ovq/models/session.h"

#include <algorithm>

#include "ovq/base/error.h"

namespace ovq::models {
namespace {

// Switches the model to evaluation for the duration of a call.
class EvaluationMode {
 public:
  explicit EvaluationMode(LanguageModel& model) : model_(model), training_(model.is_training()) {
    if (training_) model_.eval();
  }
  ~EvaluationMode() {
    if (training_) model_.train();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  LanguageModel& model_;
  const bool training_;
  const torch::NoGradGuard no_grad_;
};

// hidden [1, T, width] -> logits [vocabulary] of the token after the last one
Tensor last_logits(LanguageModel& model, const Tensor& hidden) {
  return model.logits(hidden.narrow(1, hidden.size(1) - 1, 1)).flatten().to(at::kFloat).contiguous();
}

// [1, T] that shares memory with the tokens.
Tensor as_row(std::span<const int32_t> tokens) {
  return at::from_blob(const_cast<int32_t*>(tokens.data()), {1, static_cast<int64_t>(tokens.size())}, at::kInt);
}

}  // namespace

int64_t Session::read(std::span<const int32_t> tokens, const ReadOptions& options) {
  check(options.piece >= 1, "generate", "piece is ", options.piece, "; must be at least 1");
  for (const int32_t token : tokens) {
    check(token >= 0 && token < model_.config().vocab_size, "generate", "prompt has token ", token,
          "; the vocabulary has ", model_.config().vocab_size);
  }
  if (tokens.empty()) return 0;
  settle();
  const EvaluationMode mode(model_);
  const auto piece = static_cast<size_t>(options.piece);
  size_t done = 0;
  while (done < tokens.size()) {
    const auto part = tokens.subspan(done, std::min(piece, tokens.size() - done));
    const Tensor hidden = model_.hidden(as_row(part), state_);
    done += part.size();
    const bool stop = options.each && !options.each(static_cast<int64_t>(done));
    if (done == tokens.size() || stop) logits_ = last_logits(model_, hidden);
    if (stop) break;
  }
  unread_ = static_cast<int64_t>(tokens.size() - done);
  remember(tokens.first(done));
  return static_cast<int64_t>(done);
}

int32_t Session::next(Sampler& sampler) {
  settle();
  check(logits_.defined(), "generate", "prompt is empty; must have at least one token");
  chosen_ = sampler.choose(logits(), recent_, position());
  remember({&*chosen_, 1});
  return *chosen_;
}

void Session::settle() {
  if (!chosen_) return;
  const EvaluationMode mode(model_);
  const int32_t token = *chosen_;
  logits_ = last_logits(model_, model_.step(as_row({&token, 1}), state_));
  chosen_.reset();
}

std::span<const float> Session::logits() const {
  if (!logits_.defined()) return {};
  return {logits_.data_ptr<float>(), static_cast<size_t>(logits_.numel())};
}

void Session::remember(std::span<const int32_t> tokens) {
  constexpr auto kMost = static_cast<size_t>(kMostRecent);
  tokens = tokens.last(std::min(tokens.size(), kMost));
  recent_.insert(recent_.end(), tokens.begin(), tokens.end());
  if (recent_.size() > kMost) recent_.erase(recent_.begin(), recent_.end() - kMostRecent);
}

Session::Continuation Session::continuation() {
  settle();
  return {.logits = logits_, .recent = recent_, .unread = unread_};
}

void Session::set_continuation(Continuation continuation) {
  logits_ = std::move(continuation.logits);
  recent_ = std::move(continuation.recent);
  unread_ = continuation.unread;
  chosen_.reset();
}

}  // namespace ovq::models
