// Lines of input: with editing and history on a terminal, plain otherwise.
#pragma once

#include <optional>
#include <string>

namespace ovq::cli {

class LineReader {
 public:
  explicit LineReader(std::string prompt);

  // Empty at the end of the input. On a terminal with readline, a caught signal returns an empty line. Otherwise the
  // read cannot be interrupted, so the signal ends the program.
  std::optional<std::string> next();
  bool on_terminal() const { return terminal_; }

 private:
  std::string prompt_;
  bool terminal_;
};

}  // namespace ovq::cli
