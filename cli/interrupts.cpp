#include "cli/interrupts.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "cli/console.h"
#include "ovq/base/files/durable.h"

namespace ovq::cli {
namespace {

constexpr char kSaid[] = "ovq: interrupted\n";
// Programs that forward a signal, such as `timeout`, deliver it twice within this time.
constexpr int64_t kSameRequest = 100;  // milliseconds

volatile std::sig_atomic_t noted = 0;  // the last signal
volatile std::sig_atomic_t says_so = 1;
std::atomic<int64_t> interrupt_at = 0, terminate_at = 0;  // first signal of each kind, in milliseconds; 0: none

void end_now(int number) {
  files::remove_open_parts();
  finish_moving_line();
  if (says_so != 0 && ::write(STDERR_FILENO, kSaid, sizeof(kSaid) - 1) < 0) says_so = 0;
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when the handler returns
}

// Notes the first signal; the same signal again ends the program. SIGTERM after SIGINT does not end it: a terminal
// sends Ctrl-C to the whole process group, after which a parent also terminates its children.
void note(int number) {
  std::atomic<int64_t>& first = number == SIGINT ? interrupt_at : terminate_at;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = static_cast<int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
  if (first != 0 && now - first >= kSameRequest) return end_now(number);
  if (first == 0) first = now;
  noted = number;
}

// An ignored signal stays ignored: nohup and shells start programs like that.
void handle_signals(void (*handler)(int)) {
  for (const int number : {SIGINT, SIGTERM}) {
    if (std::signal(number, handler) == SIG_IGN) std::signal(number, SIG_IGN);
  }
}

}  // namespace

bool started_by_ovq() { return std::getenv(kStartedByOvq) != nullptr; }

void end_on_signals() {
  says_so = started_by_ovq() ? 0 : 1;
  handle_signals(end_now);
}

void catch_signals() { handle_signals(note); }

bool interrupted() { return noted != 0; }
int noted_signal() { return noted; }

void clear_interrupt() {
  noted = 0;
  interrupt_at = terminate_at = 0;
}

void stop_interrupted(const std::string& saved) {
  throw Interrupted{.signal = noted != 0 ? noted : SIGTERM,
                    .message = saved.empty() ? "interrupted" : "interrupted; " + saved};
}

void end_by_signal(int number) {
  std::fflush(nullptr);
  std::signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(number);
  constexpr int kSignalled = 128;
  std::_Exit(kSignalled + number);  // if the signal is still blocked
}

}  // namespace ovq::cli
