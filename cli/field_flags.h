// A flag for each field of an options struct, "--top-k" for top_k, which writes into the struct.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string>

#include "cli/validators.h"
#include "ovq/base/fields.h"
#include "ovq/base/json_fields.h"

namespace ovq::cli {

class FieldFlags {
 public:
  explicit FieldFlags(CLI::App& command) : command_(command) {}

  // `value` must live as long as the command.
  template <class T>
  void operator()(const char* name, T& value, const char* text, const Range& range = {}) {
    std::string flag = std::string("--") + name, help = text;
    std::replace(flag.begin(), flag.end(), '_', '-');
    help[0] = static_cast<char>(std::toupper(help[0]));
    if (range.zero != nullptr) help += std::string("; 0: ") + range.zero;
    CLI::Option* added = nullptr;
    if constexpr (std::is_enum_v<T>) {
      added = command_.add_option_function<std::string>(
          flag,
          [&value, flag](const std::string& given) {
            const auto found = enum_named<T>(given);
            if (!found) throw CLI::ValidationError(flag, given + "; must be " + allowed_names(value));
            value = *found;
          },
          help + ": " + allowed_names(value));
    } else {
      added = command_.add_option(flag, value, help);
      if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) added->check(number<T>(range));
    }
    const json shown = field_value(value);
    added->default_str(shown.is_string() ? shown.get<std::string>() : shown.dump());
  }

 private:
  CLI::App& command_;
};

// Flags for all fields of `options`, which must live as long as the command.
template <class Options>
void add_fields(CLI::App& command, Options& options) {
  FieldFlags flags(command);
  list_fields(flags, options);
}

}  // namespace ovq::cli
