// What the program prints. stdout takes results: once it refuses some, commands stop and run() says why. stderr takes
// messages; errors of writing to it are ignored.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ovq::cli {

// To stdout; does not throw. False once it has refused something: the disk is full, or a pipe closed as after `| head`.
bool print_text(std::string_view text);
bool print_now(std::string_view text);  // and flushes
template <class... Values>
void print(fmt::format_string<Values...> format, Values&&... values) {
  print_text(fmt::format(format, std::forward<Values>(values)...));
}

// The errno with which stdout refused something, after a flush; none if it has taken all.
std::optional<int> output_error();
// Throws a std::runtime_error that says so, except for a closed pipe, which ends the process (SIGPIPE).
void check_output();

void print_warning(const std::string& text);  // "ovq: text" on stderr, in a line of its own

// A line that is written again and again, on a terminal. Whatever else is printed stands below or above it.
class MovingLine {
 public:
  explicit MovingLine(int file) : file_(file) {}  // of stdout or stderr
  bool on_terminal() const;
  void show(std::string_view text);
  void erase();   // removes it
  void finish();  // leaves it
 private:
  int file_;
};
// Leaves the line that moves, if there is one; for a signal handler (async-signal-safe).
void finish_moving_line() noexcept;

}  // namespace ovq::cli
