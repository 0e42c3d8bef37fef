#include "cli/interrupts.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cli/console.h"
#include "ovq/base/files/durable.h"

namespace ovq::cli {
namespace {

constexpr char kSaid[] = "ovq: interrupted\n";

volatile std::sig_atomic_t noted = 0;  // the signal
volatile std::sig_atomic_t says_so = 1;

void end_now(int number) {
  files::remove_open_parts();
  finish_moving_line();
  if (says_so != 0 && ::write(STDERR_FILENO, kSaid, sizeof(kSaid) - 1) < 0) says_so = 0;
  std::signal(number, SIG_DFL);
  std::raise(number);  // takes effect when the handler returns
}

}  // namespace

bool started_by_ovq() { return std::getenv(kStartedByOvq) != nullptr; }

void end_on_signals() {
  says_so = started_by_ovq() ? 0 : 1;
  for (const int number : {SIGINT, SIGTERM}) {
    if (std::signal(number, end_now) == SIG_IGN) std::signal(number, SIG_IGN);
  }
}

void catch_signals() {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int caught) { noted = caught; });
}

bool interrupted() { return noted != 0; }
int noted_signal() { return noted; }
void clear_interrupt() { noted = 0; }

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
  std::_Exit(kSignalled + number);  // where the signal is blocked after all
}

}  // namespace ovq::cli
