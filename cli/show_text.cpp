#include "cli/show_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/interrupts.h"
#include "ovq/base/format.h"

namespace ovq::cli {
namespace {

constexpr double kLinePause = 10, kMovePause = 0.2;  // seconds between lines; between updates of a line

}  // namespace

ReadingLine::ReadingLine() : moving_(STDERR_FILENO) {}

bool ReadingLine::show(int64_t tokens) {
  const auto now = std::chrono::steady_clock::now();
  const bool terminal = moving_.on_terminal();
  const auto since = [&](auto moment) { return std::chrono::duration<double>(now - moment).count(); };
  if (since(shown_) >= (terminal ? kMovePause : kLinePause)) {
    shown_ = now;
    const std::string line =
        fmt::format("read {} tokens, {:.0f} tokens/s", tokens, static_cast<double>(tokens) / since(start_));
    if (terminal) {
      moving_.show(line);
    } else {
      print_warning(line);
    }
  }
  return !interrupted();
}

void ReadingLine::finish() { moving_.erase(); }

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
