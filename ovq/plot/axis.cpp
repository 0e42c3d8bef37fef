#include "ovq/plot/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ovq/base/error.h"
#include "ovq/base/format.h"

namespace ovq::plot {
namespace {

constexpr double kTicks = 6;             // approximate number on a linear axis
constexpr int kMostPowers = 9;           // powers of two that are marked at most
constexpr double kRounding = 1e-9;       // of a step: tolerance for rounding of a bound
constexpr double kWidthOfNothing = 0.5;  // margin on both sides of a single value

// Rounds up to 1, 2 or 5 times a power of ten.
double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power * (1 + kRounding)) return factor * power;
  }
  return 10 * power;
}

// 1234567 -> "1.235M"
std::string si_text(double value, int digits) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  double size = std::abs(value);
  for (; size >= 999.95 && unit + 1 < std::size(kUnits); ++unit) size /= 1000;
  return fmt::format("{}{:.{}g}{}", value < 0 ? "-" : "", size, digits, kUnits[unit]);
}

std::string with_thousands(double value) {
  std::string text = fmt::format("{:.0f}", value);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return text;
}

// Whether a plain number is written with three decimals.
bool in_thousandths(double value) { return std::abs(value) < 100 && std::abs(value) >= 1e-3; }

}  // namespace

std::string tick_text(Numbers numbers, double value) {
  switch (numbers) {
    case Numbers::tokens: {
      const auto tokens = static_cast<int64_t>(std::llround(value));
      if (tokens != 0 && tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
      if (tokens != 0 && tokens % (1 << 10) == 0) return fmt::format("{}k", tokens >> 10);
      return tokens >= 1000 && tokens % 100 == 0 ? si_text(value, 3) : fmt::format("{}", tokens);
    }
    case Numbers::si:
      return si_text(value, 3);
    case Numbers::bytes:
      return bytes_text(value);
    case Numbers::seconds:
      return value == 0     ? "0"
             : value < 1e-3 ? si_text(value * 1e6, 3) + " us"
             : value < 1    ? si_text(value * 1e3, 3) + " ms"
                            : si_text(value, 3) + " s";
    case Numbers::plain:
      break;
  }
  return std::abs(value) >= 10000 ? si_text(value, 3) : fmt::format("{:.4g}", value);
}

std::string value_text(Numbers numbers, double value) {
  switch (numbers) {
    case Numbers::tokens:
      return with_thousands(value);
    case Numbers::si:
      return si_text(value, 4);
    case Numbers::bytes:
      return bytes_text(value);
    case Numbers::seconds:
      return seconds_text(value);
    case Numbers::plain:
      break;
  }
  if (value == std::round(value) && std::abs(value) >= 2) return with_thousands(value);
  return in_thousandths(value) ? fmt::format("{:.3f}", value) : fmt::format("{:.3g}", value);
}

std::string with_deviation(Numbers numbers, double value, double deviation) {
  const bool thousandths = numbers == Numbers::plain && in_thousandths(value);
  return value_text(numbers, value) + " ± " +
         (thousandths ? fmt::format("{:.3f}", deviation) : value_text(numbers, deviation));
}

Scale::Scale(const Axis& axis, double low, double high) : spacing_(axis.spacing) {
  const bool logarithmic = spacing_ != Spacing::linear;
  for (const auto& bound : {axis.from, axis.to}) {
    check(!bound || !logarithmic || *bound > 0, "plot", "a logarithmic axis has the bound ", bound.value_or(0),
          "; must be above 0");
  }
  low_ = axis.from.value_or(low);
  high_ = axis.to.value_or(high);
  check(!(axis.from && axis.to) || low_ < high_, "plot", "an axis goes from ", low_, " to ", high_,
        "; must end above its start");
  if (!(low_ < high_)) {  // a single value, or values beyond the given bound
    const double center = axis.from ? low_ : high_;
    if (!axis.from) low_ = logarithmic ? center / 2 : center - kWidthOfNothing;
    if (!axis.to) high_ = logarithmic ? center * 2 : center + kWidthOfNothing;
  }
  mark(axis);
}

bool Scale::contains(double value) const {
  const double slack = kRounding * (position(high_) - position(low_));
  return (spacing_ == Spacing::linear || value > 0) && position(value) >= position(low_) - slack &&
         position(value) <= position(high_) + slack;
}

double Scale::position(double value) const {
  return spacing_ == Spacing::linear ? value : spacing_ == Spacing::log2 ? std::log2(value) : std::log10(value);
}

double Scale::at(double value) const { return (position(value) - position(low_)) / (position(high_) - position(low_)); }

void Scale::mark(const Axis& axis) {
  const auto add = [&](double value) {
    if (contains(value)) ticks_.push_back({value, tick_text(axis.numbers, value)});
  };
  if (spacing_ == Spacing::linear) {
    const double step = round_step((high_ - low_) / kTicks);
    if (!axis.from) low_ = std::floor(low_ / step + kRounding) * step;
    if (!axis.to) high_ = std::ceil(high_ / step - kRounding) * step;
    const double first = std::ceil(low_ / step - kRounding), last = std::floor(high_ / step + kRounding);
    for (double i = first; i <= last; ++i) add(i * step + 0.0);  // + 0.0 avoids -0
    return;
  }
  if (spacing_ == Spacing::log2) {
    const int first = static_cast<int>(std::ceil(std::log2(low_) - kRounding));
    const int last = static_cast<int>(std::floor(std::log2(high_) + kRounding));
    const int step = 1 + (last - first) / kMostPowers;
    for (int power = first; power <= last; power += step) add(std::exp2(power));
    if (ticks_.empty()) add(low_);
    return;
  }
  // Whole decades; if there are few, also 2 and 5 times each.
  if (!axis.from) low_ = std::pow(10, std::floor(std::log10(low_) + kRounding));
  if (!axis.to) high_ = std::pow(10, std::ceil(std::log10(high_) - kRounding));
  const int first = static_cast<int>(std::floor(std::log10(low_) + kRounding));
  const int last = static_cast<int>(std::ceil(std::log10(high_) - kRounding));
  const int step = 1 + (last - first) / kMostPowers;
  for (int power = first; power <= last; power += step) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor == 1 || last - first <= 2) add(factor * std::pow(10, power));
    }
  }
}

}  // namespace ovq::plot
