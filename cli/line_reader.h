// Lines that the user types: edited, with a history, on a terminal; as they come from anywhere else.
#pragma once

#include <optional>
#include <string>

namespace ovq::cli {

class LineReader {
 public:
  explicit LineReader(std::string prompt);

  // Nothing at the end of the input. Ctrl-C gives an empty line.
  std::optional<std::string> next();

 private:
  std::string prompt_;
  bool terminal_;
};

}  // namespace ovq::cli
