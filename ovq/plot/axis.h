// Axes: the positions of values, the ticks and their labels.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ovq/base/fields.h"

namespace ovq::plot {

enum class Spacing { linear, log2, log10 };
constexpr auto enum_names(Spacing) {
  using enum Spacing;
  return std::to_array<EnumName<Spacing>>({{linear, "linear"}, {log2, "log2"}, {log10, "log10"}});
}

enum class Numbers {
  plain,
  tokens,   // 512, 1k, 2k: in units of 1024 where the value is a multiple
  si,       // 1.5M, 2G
  bytes,    // 512 B, 1.5 MB
  seconds,  // 5.67 ms
};
constexpr auto enum_names(Numbers) {
  using enum Numbers;
  return std::to_array<EnumName<Numbers>>(
      {{plain, "plain"}, {tokens, "tokens"}, {si, "si"}, {bytes, "bytes"}, {seconds, "seconds"}});
}

struct Axis {
  std::string label;
  Spacing spacing = Spacing::linear;
  Numbers numbers = Numbers::plain;
  std::optional<double> from, to;  // absent: taken from the data
};

// tick_text is the short label on an axis; value_text, for tables and hints, is exact enough to compare values.
std::string tick_text(Numbers numbers, double value);
std::string value_text(Numbers numbers, double value);
// "0.998 ± 0.001", with the same number of decimals.
std::string with_deviation(Numbers numbers, double value, double deviation);

struct Tick {
  double value = 0;
  std::string text;
};

// An axis over given values.
class Scale {
 public:
  // `low` and `high` are the extremes of the data. A logarithmic axis cannot show values of 0 or less.
  // std::invalid_argument if a bound is such a value or the bounds are in the wrong order.
  Scale(const Axis& axis, double low, double high);

  double low() const { return low_; }
  double high() const { return high_; }
  bool contains(double value) const;
  double at(double value) const;  // 0 at the low end, 1 at the high one
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  double position(double value) const;  // on the axis with its spacing applied
  void mark(const Axis& axis);

  Spacing spacing_;
  double low_ = 0, high_ = 1;
  std::vector<Tick> ticks_;
};

}  // namespace ovq::plot
