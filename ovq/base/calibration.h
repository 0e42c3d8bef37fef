// Defines when a fast path is as good as the plain one it replaces: its largest error against the truth, in double, is
// at most twice that of the plain path in float, plus a floor,
//   max |fast - truth| <= 2 max |plain - truth| + floor * magnitude,  magnitude: max |truth|, or more where terms
//   cancel.
// NaN and infinities always fail. Tests and benchmarks share this rule, so no tolerance is a number that happened to
// pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ovq {

class Calibration {
 public:
  static constexpr double kPlainErrors = 2;
  static constexpr double kFloor = 1e-6;

  // `magnitude`: that of summed terms that may have cancelled; their rounding exceeds that of the sum.
  explicit Calibration(double magnitude = 0, double floor = kFloor) : magnitude_(magnitude), floor_(floor) {}

  void add(double fast, double plain, double truth) {
    const bool finite = std::isfinite(plain) && std::isfinite(truth);
    const double error = std::abs(fast - truth);
    const double counted = finite && std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
    if (count_ == 0 || counted > error_) {
      error_ = counted;
      worst_ = {count_, fast, plain, truth};
    }
    if (finite) {
      plain_error_ = std::max(plain_error_, std::abs(plain - truth));
      magnitude_ = std::max(magnitude_, std::abs(truth));
    }
    ++count_;
  }
  void add_magnitude(double magnitude) { magnitude_ = std::max(magnitude_, magnitude); }

  double error() const { return error_; }  // of the fast path; infinite if any value was not finite
  double plain_error() const { return plain_error_; }
  double bound() const { return kPlainErrors * plain_error_ + floor_ * magnitude_; }
  bool holds() const { return std::isfinite(error_) && error_ <= bound(); }

  struct Element {
    int64_t index = 0;  // in the order of the calls of add
    double fast = 0, plain = 0, truth = 0;
  };
  const Element& worst() const { return worst_; }
  int64_t count() const { return count_; }

 private:
  double magnitude_, floor_;
  double error_ = 0, plain_error_ = 0;
  Element worst_;
  int64_t count_ = 0;
};

}  // namespace ovq
