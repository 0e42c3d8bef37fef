// Validators for option values; their errors say what came and what was expected. Also the option --threads, which all
// computing commands have.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>

#include "ovq/base/fields.h"

namespace ovq::cli {

// Describes what is wrong with a text that should be a number of type T in a range; empty if nothing is. Used for every
// number on the command line, so that all flags reject the same input: words, units, values that T cannot hold,
// infinity and NaN.
template <class T>
std::string wrong_number(const std::string& text, const Range& range) {
  const std::string came = text.empty() ? "\"\"" : text, allowed = range.text();
  T value{};
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const bool negative = text.starts_with("-");
  if (error == std::errc::result_out_of_range && end == last) {
    using Limits = std::numeric_limits<T>;
    if (std::is_floating_point_v<T> && std::abs(std::strtod(text.c_str(), nullptr)) < 1)
      return fmt::format("{}; is too close to 0; must be {}at least {:.3g} in magnitude", came,
                         range.contains(0) ? "0 or " : "", static_cast<double>(Limits::min()));
    if (negative ? range.bounded_below() : range.bounded_above()) return came + "; must be " + allowed;
    return fmt::format("{}; must be {} {}", came, negative ? "at least" : "at most",
                       negative ? Limits::lowest() : Limits::max());
  }
  if (std::is_unsigned_v<T> && negative) return came + "; must be at least 0";
  if (error != std::errc() || end != last) {
    return fmt::format("{} is not {}{}{}", came, std::is_integral_v<T> ? "an integer" : "a number",
                       allowed.empty()         ? ""
                       : range.bounded_above() ? "; must be one "
                                               : "; must be one of ",
                       allowed);
  }
  if (!std::isfinite(static_cast<double>(value))) return came + "; must be a finite number";
  return range.contains(static_cast<double>(value)) ? "" : came + "; must be " + allowed;
}

// Checks numbers; in a list, every element.
template <class T>
CLI::Validator number(const Range& range = {}) {
  return {[range](std::string& text) { return wrong_number<T>(text, range); }, ""};
}
inline CLI::Validator at_least(int64_t least) { return number<int64_t>(ovq::at_least(static_cast<double>(least))); }
inline CLI::Validator within(int64_t least, int64_t most) {
  return number<int64_t>(ovq::within(static_cast<double>(least), static_cast<double>(most)));
}
inline CLI::Validator share() { return number<double>(above_up_to(0, 1)); }

inline void add_threads(CLI::App& command, int& threads) {
  constexpr int kMostThreads = 1024;
  command.add_option("--threads", threads, "Threads to use; default: all cores")
      ->check(within(1, kMostThreads))
      ->type_name("N");
}

}  // namespace ovq::cli
