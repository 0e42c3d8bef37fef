#include "cli/show_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "ovq/base/format.h"

namespace ovq::cli {
namespace {

constexpr double kLinePause = 10, kMovePause = 0.2;  // seconds between lines, or moves of one

volatile std::sig_atomic_t signalled = 0;

}  // namespace

void catch_signals() {
  std::signal(SIGINT, [](int) { signalled = 1; });
  std::signal(SIGPIPE, SIG_IGN);
}

bool stop_requested() { return signalled != 0; }
void clear_interrupt() { signalled = 0; }

bool print_now(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

bool ReadingLine::show(int64_t tokens) {
  const auto now = std::chrono::steady_clock::now();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto since = [&](auto moment) { return std::chrono::duration<double>(now - moment).count(); };
  if (since(shown_) >= (terminal ? kMovePause : kLinePause)) {
    shown_ = now;
    fmt::print(stderr, "{}read {} tokens, {:.0f} tokens/s{}", terminal ? "\r\x1b[K" : "ovq: ", tokens,
               static_cast<double>(tokens) / since(start_), terminal ? "" : "\n");
    std::fflush(stderr);
    moving_ = terminal;
  }
  return !stop_requested();
}

void ReadingLine::finish() {
  if (moving_) fmt::print(stderr, "\r\x1b[K");
  moving_ = false;
}

std::string timing_text(const char* what, const Timing& timing) {
  return fmt::format("{} {} tokens in {}, {:.0f} tokens/s", what, timing.tokens, seconds_text(timing.seconds),
                     timing.rate());
}

std::string state_text(const models::TextSession& session) {
  const auto state = static_cast<double>(session.state_bytes()), cache = static_cast<double>(session.kv_cache_bytes());
  return fmt::format("{} tokens so far; weights {}, state {}, a KV cache would hold {}", session.position(),
                     bytes_text(static_cast<double>(session.weight_bytes())), bytes_text(state), bytes_text(cache));
}

}  // namespace ovq::cli
