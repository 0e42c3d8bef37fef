// Ctrl-C (SIGINT) and SIGTERM. An interrupted command reports it and ends by that signal, so that a shell sees 130 or
// 143 and a loop of commands stops. By default the program ends at once. A command with something to save calls
// catch_signals, polls interrupted(), saves and calls stop_interrupted().
#pragma once

#include <csignal>
#include <string>

namespace ovq::cli {

// Set in processes that ovq itself started: they leave messages to their parent. If they were told to stop and have
// saved, they end with a status instead of a signal, because the parent could not tell it from a signal of another
// origin.
inline constexpr const char* kStartedByOvq = "OVQ_STARTED_BY";
inline constexpr int kStoppedStatus = 4;
bool started_by_ovq();

// Take effect from now on. Signals that were ignored when the program started stay ignored.
void end_on_signals();  // at once
void catch_signals();   // notes the first; the same signal again ends the program at once
bool interrupted();     // whether a signal was noted
int noted_signal();     // the signal; 0: none
void clear_interrupt();

// Thrown by an interrupted command. Not a std::exception, so that only run() catches it.
struct Interrupted {
  int signal = SIGTERM;
  std::string message;  // empty: another process reports it
};
// Throws Interrupted for the noted signal (SIGTERM if another process was told to stop). `saved` tells the user how to
// continue.
[[noreturn]] void stop_interrupted(const std::string& saved = "");

[[noreturn]] void end_by_signal(int number);

}  // namespace ovq::cli
