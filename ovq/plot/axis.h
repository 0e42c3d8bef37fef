// Axes: where a value lies, which values are marked, and how they are written.
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
  tokens,   // 512, 1k, 2k: multiples of 1024 where they are some
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
  std::optional<double> from, to;  // absent: what there is
};

// As a label of the axis, short, and as a value in tables and hints, exact enough to be compared.
std::string tick_text(Numbers numbers, double value);
std::string value_text(Numbers numbers, double value);
// "0.998 ± 0.001": both to the same place
std::string with_deviation(Numbers numbers, double value, double deviation);

struct Tick {
  double value = 0;
  std::string text;
};

// An axis over given values.
class Scale {
 public:
  // `low` and `high` are the extremes of what is to be shown. On a logarithmic axis values that are not above 0 have no
  // place; std::invalid_argument if a bound of the axis is such a value or the bounds are in the wrong order.
  Scale(const Axis& axis, double low, double high);

  double low() const { return low_; }
  double high() const { return high_; }
  bool contains(double value) const;
  double at(double value) const;  // 0 at the low end, 1 at the high one
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  double position(double value) const;  // on the axis as it is spaced
  void mark(const Axis& axis);

  Spacing spacing_;
  double low_ = 0, high_ = 1;
  std::vector<Tick> ticks_;
};

}  // namespace ovq::plot
