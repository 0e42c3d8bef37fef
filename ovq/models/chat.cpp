#include "ovq/models/chat.h"

namespace ovq::models {

Chat::Chat(TextModel model, ChatOptions options, StateDtype dtype)
    : options_(std::move(options)), session_(std::move(model), dtype) {
  check_fields("chat", options_);
}

void Chat::remember(TextSession::Mark before) {
  marks_.push_back(std::move(before));
  while (static_cast<int64_t>(marks_.size()) > options_.undo) marks_.pop_front();
}

Written Chat::say(const std::string& line, const ReadOptions& read, const WriteOptions& write) {
  TextSession::Mark before = session_.mark();
  try {
    bool stopped = false;
    ReadOptions watched = read;
    watched.each = [&](int64_t tokens) { return !(stopped = read.each && !read.each(tokens)); };
    session_.read(options_.user_prefix + line + "\n" + options_.answer_prefix, watched);
    if (stopped) {
      session_.return_to(before);
      return {.end = WritingEnd::interrupted};
    }
    const Written written = session_.write(write);
    remember(std::move(before));
    return written;
  } catch (...) {
    session_.return_to(before);
    throw;
  }
}

bool Chat::undo() {
  if (marks_.empty()) return false;
  session_.return_to(marks_.back());
  marks_.pop_back();
  return true;
}

void Chat::reset() {
  remember(session_.mark());
  session_.return_to({});
}

void Chat::load(const std::filesystem::path& path) {
  TextSession::Mark before = session_.mark();
  session_.load(path);
  remember(std::move(before));
}

}  // namespace ovq::models
