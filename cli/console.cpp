#include "cli/console.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "cli/interrupts.h"

namespace ovq::cli {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

int refused = 0;                  // the first errno of a failed write to stdout
std::atomic<int> moving_on = -1;  // the file that has an unfinished progress line

bool note_error(bool good) {
  if (!good && refused == 0) refused = errno != 0 ? errno : EIO;
  return good && refused == 0;
}

}  // namespace

bool print_text(std::string_view text) {
  errno = 0;
  return note_error(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

bool print_now(std::string_view text) {
  const bool taken = print_text(text);
  errno = 0;
  return note_error(std::fflush(stdout) == 0) && taken;
}

std::optional<int> output_error() {
  errno = 0;
  note_error(std::fflush(stdout) == 0 && std::ferror(stdout) == 0);
  return refused == 0 ? std::nullopt : std::optional<int>(refused);
}

void check_output() {
  const std::optional<int> error = output_error();
  if (!error) return;
  if (*error == EPIPE) end_by_signal(SIGPIPE);
  throw std::runtime_error(fmt::format("cannot write to standard output: {}", std::strerror(*error)));
}

void print_warning(const std::string& text) {
  finish_moving_line();
  std::fputs(fmt::format("ovq: {}\n", text).c_str(), stderr);
}

bool MovingLine::on_terminal() const { return isatty(file_) != 0; }

void MovingLine::show(std::string_view text) {
  const std::string line = fmt::format("{}{}", kEraseLine, text);
  if (file_ == STDOUT_FILENO) {
    print_now(line);
  } else {
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
  }
  moving_on = file_;
}

void MovingLine::erase() {
  if (moving_on != file_) return;
  show("");
  moving_on = -1;
}

void MovingLine::finish() {
  if (moving_on == file_) finish_moving_line();
}

void finish_moving_line() noexcept {
  const int file = moving_on.exchange(-1);
  if (file >= 0 && ::write(file, "\n", 1) < 0) return;  // the terminal is gone
}

}  // namespace ovq::cli
