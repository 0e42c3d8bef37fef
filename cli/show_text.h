// Messages about reading and writing text. They go to stderr because stdout carries the text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/console.h"
#include "ovq/models/text_session.h"

namespace ovq::cli {

// Progress of reading a prompt: an updated line on a terminal, otherwise a line every ten seconds.
class ReadingLine {
 public:
  ReadingLine();
  // To be used as `each` of ReadOptions; returns false after Ctrl-C.
  bool show(int64_t tokens);
  void finish();

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), shown_ = start_;
  MovingLine moving_;
};

// A number of tokens and the time they took.
struct Timing {
  int64_t tokens = 0;
  double seconds = 0;

  double rate() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};
// Measures `work`, which returns a number of tokens.
template <class Work>
Timing timed(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t tokens = work();
  return {tokens, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

std::string timing_text(const char* what, const Timing& timing);  // "read 512 tokens, 4096 tokens/s"
std::string state_text(const models::TextSession& session);       // "12000 tokens so far; state 1.2 MB, a KV cache ..."

}  // namespace ovq::cli
