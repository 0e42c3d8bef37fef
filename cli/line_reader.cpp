#include "cli/line_reader.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "cli/console.h"
#include "cli/interrupts.h"

#ifdef OVQ_WITH_READLINE
#include <readline/history.h>
#include <readline/readline.h>
#endif

namespace ovq::cli {

LineReader::LineReader(std::string prompt)
    : prompt_(std::move(prompt)), terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
#ifdef OVQ_WITH_READLINE
  rl_catch_signals = 0;  // the program handles Ctrl-C itself
  rl_event_hook = [] {
    if (interrupted()) rl_done = 1;
    return 0;
  };
#endif
}

std::optional<std::string> LineReader::next() {
#ifdef OVQ_WITH_READLINE
  if (terminal_) {
    char* line = readline(prompt_.c_str());
    if (line == nullptr) return std::nullopt;
    std::string text = line;
    std::free(line);
    if (interrupted()) {
      print_now("\n");
      return "";
    }
    if (!text.empty()) add_history(text.c_str());
    return text;
  }
#endif
  if (terminal_) print_now(prompt_);
  std::string text;
  end_on_signals();
  const bool read = static_cast<bool>(std::getline(std::cin, text));
  catch_signals();
  return read ? std::optional(text) : std::nullopt;
}

}  // namespace ovq::cli
