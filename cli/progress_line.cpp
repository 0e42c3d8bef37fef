#include "cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include "ovq/base/format.h"

namespace ovq::cli {
namespace {

constexpr double kSecondsBetweenLines = 10;
constexpr double kSecondsBetweenMoves = 0.2;
constexpr double kSmoothing = 0.05;
constexpr int64_t kBarWidth = 24;

}  // namespace

ProgressLine::ProgressLine(int64_t steps, int64_t first_step)
    : moving_(STDOUT_FILENO),
      terminal_(moving_.on_terminal()),
      steps_(steps),
      first_step_(first_step),
      start_(std::chrono::steady_clock::now()),
      shown_(start_ - std::chrono::hours(1)) {}

std::string ProgressLine::line(const train::StepReport& report) const {
  const double left = seconds_ * static_cast<double>(steps_ - report.step);
  return fmt::format("step {}/{}  loss {:.4f}  accuracy {:.3f}  {:.1f}k tokens/s  {} left", report.step, steps_,
                     report.loss, report.accuracy, tokens_per_second_ / 1000, duration_text(left));
}

void ProgressLine::step(const train::StepReport& report) {
  const bool first = report.step == first_step_ + 1;
  const double speed = static_cast<double>(report.tokens) / report.seconds;
  const double share = first ? 1.0 : kSmoothing;
  seconds_ += share * (report.seconds - seconds_);
  tokens_per_second_ += share * (speed - tokens_per_second_);
  const auto now = std::chrono::steady_clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (report.step != steps_ && since < (terminal_ ? kSecondsBetweenMoves : kSecondsBetweenLines)) return;
  shown_ = now;
  if (!terminal_) {
    print_now(line(report) + "\n");
    return;
  }
  const int64_t done = steps_ == 0 ? kBarWidth : report.step * kBarWidth / steps_;
  moving_.show(fmt::format("[{}{}] {}", std::string(static_cast<size_t>(done), '#'),
                           std::string(static_cast<size_t>(kBarWidth - done), '.'), line(report)));
}

void ProgressLine::message(const std::string& text) {
  moving_.erase();
  print_now(text + "\n");
}

void ProgressLine::finish() { moving_.finish(); }

}  // namespace ovq::cli
