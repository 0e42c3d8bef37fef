// Ctrl-C (SIGINT) and SIGTERM. Whatever they interrupt says so and ends by that signal, so that a shell sees 130 or 143
// and a loop of commands stops. Without catch_signals that is at once; a command with something to save calls it, looks
// at interrupted() from time to time, saves and calls stop_interrupted().
#pragma once

#include <csignal>
#include <string>

namespace ovq::cli {

// Processes that ovq itself has started, with this variable, leave it to that process to say what has happened. If they
// were told to stop and all is saved, they end with a status instead of a signal, which could be another's.
inline constexpr const char* kStartedByOvq = "OVQ_STARTED_BY";
inline constexpr int kStoppedStatus = 4;
bool started_by_ovq();

// From now on. Signals that the program was started to ignore stay ignored.
void end_on_signals();  // at once
void catch_signals();   // the first is noted; the same signal again ends the program at once
bool interrupted();     // whether one was noted
int noted_signal();     // which; 0: none
void clear_interrupt();

// Thrown by an interrupted command. Not a std::exception, so that only run() catches it.
struct Interrupted {
  int signal = SIGTERM;
  std::string message;  // empty: another process reports it
};
// Throws one for the signal that was noted (SIGTERM, if another process was told to stop). `saved` says what is left.
[[noreturn]] void stop_interrupted(const std::string& saved = "");

[[noreturn]] void end_by_signal(int number);

}  // namespace ovq::cli
