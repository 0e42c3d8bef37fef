// Lines that the user types: edited, with a history, on a terminal; as they come from anywhere else.
#pragma once

#include <optional>
#include <string>

namespace ovq::cli {

class LineReader {
 public:
  explicit LineReader(std::string prompt);

  // Nothing at the end of the input. On a terminal with readline, a signal that is caught gives an empty line. Without
  // readline or a terminal it would have to wait for the line, so it ends the program.
  std::optional<std::string> next();
  bool on_terminal() const { return terminal_; }

 private:
  std::string prompt_;
  bool terminal_;
};

}  // namespace ovq::cli
