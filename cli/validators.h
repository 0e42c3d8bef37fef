// Checks of what is typed after an option, each of which says what came and what was expected, and the option that all
// commands that compute have.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

namespace ovq::cli {

// Integers of at least `least`; in a list, every one of them.
inline CLI::Validator at_least(int64_t least) {
  return {[least](std::string& text) {
            int64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error != std::errc() || end != text.data() + text.size())
              return fmt::format("{} is not an integer; must be one of at least {}", text, least);
            return value < least ? fmt::format("{}; must be at least {}", value, least) : std::string();
          },
          ""};
}

// Numbers above 0 and at most 1; in a list, every one of them.
inline CLI::Validator share() {
  return {[](std::string& text) {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool good = error == std::errc() && end == text.data() + text.size() && value > 0 && value <= 1;
            return good ? std::string() : fmt::format("{}; must be a number above 0 and at most 1", text);
          },
          ""};
}

inline void add_threads(CLI::App& command, int& threads) {
  constexpr int kMostThreads = 1024;
  command.add_option("--threads", threads, "Threads to use; default: all cores")
      ->check(CLI::Range(1, kMostThreads))
      ->type_name("N");
}

}  // namespace ovq::cli
