// A conversation on one session. It reads each line of the user and writes an answer; turns can be undone.
//   user_prefix line "\n" answer_prefix -> answer
#pragma once

#include <deque>
#include <filesystem>
#include <string>

#include "ovq/models/text_session.h"

namespace ovq::models {

struct ChatOptions {
  std::string user_prefix, answer_prefix;
  int64_t undo = 8;
};

template <class Fields>
void list_fields(Fields& field, ChatOptions& o) {
  field("user_prefix", o.user_prefix, "text before each line of the user");
  field("answer_prefix", o.answer_prefix, "text before each answer");
  field("undo", o.undo, "number of turns that /undo can undo; each needs the memory of one state", at_least(0));
}

class Chat {
 public:
  Chat(TextModel model, ChatOptions options, StateDtype dtype = StateDtype::float32);

  // One turn. If reading the line fails or is stopped, the session is as it was.
  Written say(const std::string& line, const ReadOptions& read, const WriteOptions& write);
  // Undoes the last turn; false if there is none.
  bool undo();
  void reset();  // starts an empty conversation; can be undone
  void save(const std::filesystem::path& path) { session_.save(path); }
  void load(const std::filesystem::path& path);  // can be undone

  const TextSession& session() const { return session_; }

 private:
  void remember(TextSession::Mark before);

  ChatOptions options_;
  TextSession session_;
  std::deque<TextSession::Mark> marks_;  // before each of the last turns
};

}  // namespace ovq::models
