// Output of the program. stdout is for results: after the first failed write, commands stop and run() reports the
// error. stderr is for messages; its write errors are ignored.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ovq::cli {

// Writes to stdout; does not throw. False after the first failed write, such as a full disk or a pipe closed by `|
// head`.
bool print_text(std::string_view text);
bool print_now(std::string_view text);  // and flushes
template <class... Values>
void print(fmt::format_string<Values...> format, Values&&... values) {
  print_text(fmt::format(format, std::forward<Values>(values)...));
}

// Flushes stdout; the errno of the first failed write, or none.
std::optional<int> output_error();
// Throws std::runtime_error if a write to stdout failed. A closed pipe ends the process instead (SIGPIPE).
void check_output();

void print_warning(const std::string& text);  // "ovq: text" on stderr, in a line of its own

// A line on a terminal that is overwritten again and again. Other output appears above or below it.
class MovingLine {
 public:
  explicit MovingLine(int file) : file_(file) {}  // of stdout or stderr
  bool on_terminal() const;
  void show(std::string_view text);
  void erase();   // removes the line
  void finish();  // leaves the line on the screen
 private:
  int file_;
};
// Ends the current moving line, if any, so that later output is below it. For a signal handler (async-signal-safe).
void finish_moving_line() noexcept;

}  // namespace ovq::cli
