// The fields of an options struct, listed once beside the struct:
//
//   template <class Fields>
//   void list_fields(Fields& field, AttentionOptions& o) {
//     field("window", o.window, "keys a query sees, its own included", or_zero(at_least(1), "all before it"));
//   }
//
// Each field has a name, a reference to its value (which gives the type, and the default in a new struct), a line of
// description and the allowed values. JSON input and output, help texts, torch's schemas, Python's keywords and
// docstrings, and state files are visitors of these lists. Values are int64_t, uint64_t, float, double, bool,
// std::string, enums, and std::optional<float>.
//
// Fields that earlier versions had are listed beside it, so that their files can still be read:
//
//   constexpr auto retired_fields(const RunOptions&) {
//     return std::to_array<RetiredField>({{.name = "keep", .now = "keep_checkpoints"}});
//   }
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "ovq/base/error.h"

namespace ovq {

// Beside an enum: constexpr auto enum_names(Growth) { return std::to_array<EnumName<Growth>>({{Growth::all, "all"}}); }
template <class Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

// "a, b or c"
template <class Enum>
std::string allowed_names(Enum any) {
  std::string text;
  const auto names = enum_names(any);
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i].name);
  return text;
}

template <class Enum>
std::string_view name_of(Enum value) {
  for (const auto& [candidate, name] : enum_names(value))
    if (candidate == value) return name;
  return {};
}

template <class Enum>
std::optional<Enum> enum_named(std::string_view name) {
  for (const auto& [value, candidate] : enum_names(Enum{}))
    if (candidate == name) return value;
  return std::nullopt;
}

// The numbers that a field allows. `zero`: the meaning of 0 where it is not an ordinary number.
struct Range {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool open = false, open_above = false;  // the bound itself is not allowed
  const char* zero = nullptr;

  bool bounded_below() const { return std::isfinite(least); }
  bool bounded_above() const { return std::isfinite(most); }
  // No range contains NaN.
  bool contains(double x) const {
    const bool enough = open ? x > least : x >= least, few = open_above ? x < most : x <= most;
    return (zero != nullptr && x == 0) || (enough && few);
  }
  // "at least 1", "positive", "in (0, 1]", "between 0 and 1", possibly followed by ", or 0 for all"; empty: any number.
  std::string text() const {
    std::ostringstream text;
    text.precision(std::numeric_limits<double>::digits10);  // 1048576, not 1.04858e+06
    if (bounded_above() && open && open_above) {
      text << "between " << least << " and " << most;
    } else if (bounded_above()) {
      text << "in " << (open ? "(" : "[") << least << ", " << most << "]";
    } else if (open && least == 0) {
      text << "positive";
    } else if (bounded_below()) {
      text << (open ? "above " : "at least ") << least;
    }
    if (zero != nullptr) text << ", or 0 for " << zero;
    return text.str();
  }
};
constexpr Range at_least(double least) { return {.least = least}; }
constexpr Range above(double least) { return {.least = least, .open = true}; }
constexpr Range within(double least, double most) { return {.least = least, .most = most}; }
constexpr Range above_up_to(double least, double most) { return {.least = least, .most = most, .open = true}; }
constexpr Range between(double low, double high) {
  return {.least = low, .most = high, .open = true, .open_above = true};
}
constexpr Range or_zero(Range range, const char* meaning) {
  range.zero = meaning;
  return range;
}

// A field that the options no longer have under this name.
struct RetiredField {
  const char* name;
  const char* now = nullptr;    // the field that has its value now; nullptr: none
  const char* value = nullptr;  // without `now`: its last default, as JSON
  bool had_effect = false;      // any other value is refused, because it would be lost
};

template <class Options>
constexpr auto retired_fields_of(const Options& options) {
  if constexpr (requires { retired_fields(options); }) {
    return retired_fields(options);
  } else {
    return std::array<RetiredField, 0>();
  }
}

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

// A visitor that throws std::invalid_argument, "[op] chunk is 0; must be at least 1". It builds texts only for errors,
// because the checks run for every token.
class FieldChecker {
 public:
  explicit FieldChecker(const char* op) : op_(op) {}

  template <class T>
  void operator()(const char* name, const T& value, const char* /*text*/, const Range& range = {}) const {
    if constexpr (std::is_enum_v<T>) {
      if (name_of(value).empty()) {
        fail(op_, name, " is ", static_cast<int64_t>(value), "; must be ", allowed_names(value));
      }
    } else if constexpr (is_optional<T>) {
      if (value) (*this)(name, *value, nullptr, range);
    } else if constexpr (!std::is_same_v<T, bool> && std::is_arithmetic_v<T>) {
      const bool free = !range.bounded_below() && !range.bounded_above();
      if (!free && !range.contains(static_cast<double>(value))) {
        fail(op_, name, " is ", value, "; must be ", range.text());
      }
      if (std::is_floating_point_v<T>) {
        check(std::isfinite(static_cast<double>(value)), op_, name, " is ", value, "; must be finite");
      }
    }
  }

 private:
  const char* op_;
};

// Checks every field of `options` by itself; the caller checks how fields fit together.
template <class Options>
void check_fields(const char* op, const Options& options) {
  FieldChecker checker(op);
  Options copy = options;
  list_fields(checker, copy);
}

}  // namespace ovq
