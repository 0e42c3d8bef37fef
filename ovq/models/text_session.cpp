#include "ovq/models/text_session.h"

#include "ovq/base/error.h"
#include "ovq/models/inspect.h"
#include "ovq/models/state_file.h"
#include "ovq/models/weights.h"
#include "ovq/text/text_stream.h"

namespace ovq::models {

TextModel load_text_model(const std::filesystem::path& directory, const std::string& tokenizer, StateDtype weights) {
  TextModel loaded{
      .model = load_model(directory),
      .tokenizer = tokenizer.empty() ? text::load_tokenizer(directory.string()) : text::make_tokenizer(tokenizer)};
  check_data(loaded.tokenizer != nullptr, "model", directory.string(),
             " has no tokenizer: neither tokenizer.model nor tokenizer.bytes");
  check_data(loaded.tokenizer->vocab() == loaded.model->config().vocab_size, "model", "the tokenizer has ",
             loaded.tokenizer->vocab(), " tokens; ", directory.string(), " has ", loaded.model->config().vocab_size);
  if (weights == StateDtype::bfloat16) loaded.model->store_bfloat16_weights();
  loaded.model->eval();  // once, not for every token
  return loaded;
}

const char* name_of_end(WritingEnd end) {
  switch (end) {
    case WritingEnd::tokens:
      return "tokens";
    case WritingEnd::end_token:
      return "end of text";
    case WritingEnd::stop_string:
      return "stop string";
    case WritingEnd::interrupted:
      return "interrupted";
  }
  return "";
}

TextSession::TextSession(TextModel model, StateDtype dtype)
    : model_(std::move(model.model)),
      tokenizer_(std::move(model.tokenizer)),
      state_(dtype),
      session_(*model_, state_) {}

int64_t TextSession::read(std::string_view text, const ReadOptions& options) {
  std::vector<int32_t> tokens = tokenizer_->encode(text, at_start() ? text::Place::start : text::Place::middle);
  if (const auto begin = tokenizer_->begin_token(); begin && position() == 0) tokens.insert(tokens.begin(), *begin);
  return session_.read(tokens, options);
}

Written TextSession::write(const WriteOptions& options) {
  check_fields("generate", options.generate);
  check(position() > 0, "generate", "the prompt is empty, and the tokenizer has no token that begins a text");
  Sampler sampler(options.generate.sampling);
  text::TextStream stream(*tokenizer_, at_start() ? text::Place::start : text::Place::middle, options.stops);
  Written written;
  const auto show = [&](const WrittenToken& one) {
    if (options.each && !options.each(one)) written.end = WritingEnd::interrupted;
    return written.end != WritingEnd::interrupted;
  };
  while (written.tokens < options.generate.tokens) {
    WrittenToken one{.token = session_.next(sampler)};
    ++written.tokens;
    if (options.log_probabilities) one.log_probability = log_probability(session_.logits(), one.token);
    const bool ends = !options.ignore_end && one.token == tokenizer_->end_token();
    if (!ends) one.text = stream.add(one.token);
    if (ends || written.tokens == options.generate.tokens) one.text += stream.finish();
    if (!show(one)) {
      written.rest = stream.finish();
      break;
    }
    if (ends) written.end = WritingEnd::end_token;
    if (stream.stopped()) written.end = WritingEnd::stop_string;
    if (written.end != WritingEnd::tokens) break;
  }
  return written;
}

int64_t TextSession::kv_cache_bytes() const {
  return models::kv_cache_bytes(model_->config(), position(), state_.dtype());
}

void TextSession::save(const std::filesystem::path& path) {
  if (fingerprint_.empty()) fingerprint_ = fingerprint(*model_);
  const Session::Continuation continuation = session_.continuation();
  save_session(path, state_, continuation, {.model = fingerprint_, .tokenizer = tokenizer_->identity()});
}

void TextSession::load(const std::filesystem::path& path) {
  if (fingerprint_.empty()) fingerprint_ = fingerprint(*model_);
  StoredSession stored = load_session(path, {.model = fingerprint_, .tokenizer = tokenizer_->identity()});
  const StateDtype dtype = state_.dtype();
  state_ = std::move(stored.state);
  state_.set_dtype(dtype);
  session_.set_continuation(std::move(stored.continuation));
}

TextSession::Mark TextSession::mark() {
  Session::Continuation continuation = session_.continuation();
  return {.state = state_.snapshot(), .continuation = std::move(continuation)};
}

void TextSession::return_to(const Mark& mark) {
  const StateDtype dtype = state_.dtype();
  state_ = mark.state.snapshot();
  state_.set_dtype(dtype);
  session_.set_continuation(mark.continuation);
}

}  // namespace ovq::models
