// Comparison of results: calibrated by the plain loop in float, or bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include "ovq/base/calibration.h"

namespace ovq::kernels::test {

struct Comparison {
  std::span<const float> actual;       // the fast path
  std::span<const float> plain;        // the plain loop in float
  std::span<const double> truth;       // the plain loop in double
  double magnitude = 0;                // of the terms that may cancel in the truth
  double floor = Calibration::kFloor;  // error always allowed, relative to the larger of magnitude and truth
};

inline testing::AssertionResult holds(const Calibration& calibration) {
  if (calibration.holds()) return testing::AssertionSuccess();
  const auto& [index, fast, plain, truth] = calibration.worst();
  return testing::AssertionFailure() << "element " << index << " of " << calibration.count() << " is " << fast
                                     << "; expected " << truth << " +- " << calibration.bound() << " (error "
                                     << calibration.error() << ", plain path there " << plain << ", its largest error "
                                     << calibration.plain_error() << ")";
}

// By the rule of ovq/base/calibration.h.
inline testing::AssertionResult calibrated(const Comparison& comparison) {
  const auto& [actual, plain, truth, magnitude, floor] = comparison;
  if (actual.size() != truth.size() || plain.size() != truth.size()) {
    return testing::AssertionFailure() << actual.size() << " elements and " << plain.size() << " of the plain loop; "
                                       << truth.size() << " expected";
  }
  Calibration calibration(magnitude, floor);
  for (size_t i = 0; i < truth.size(); ++i) calibration.add(actual[i], plain[i], truth[i]);
  return holds(calibration);
}

// |actual - truth| <= tolerance * max(1, max |truth|). NaN and infinities fail.
template <class Actual>
testing::AssertionResult close_to(std::span<const Actual> actual, std::span<const double> truth, double tolerance) {
  if (actual.size() != truth.size()) {
    return testing::AssertionFailure() << actual.size() << " elements; " << truth.size() << " expected";
  }
  double bound = tolerance;
  for (double value : truth) bound = std::max(bound, tolerance * std::abs(value));
  for (size_t i = 0; i < truth.size(); ++i) {
    if (!std::isfinite(truth[i]) || !(std::abs(actual[i] - truth[i]) <= bound)) {
      return testing::AssertionFailure() << "element " << i << " of " << truth.size() << " is " << actual[i]
                                         << "; expected " << truth[i] << " +- " << bound;
    }
  }
  return testing::AssertionSuccess();
}

// Equal as bytes: NaN equals the same NaN, and 0 is not -0.
template <class T>
testing::AssertionResult same_bits(std::span<const T> actual, std::span<const T> expected) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " elements; " << expected.size() << " expected";
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0) {
      return testing::AssertionFailure() << "element " << i << " of " << expected.size() << " is " << actual[i]
                                         << "; expected exactly " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

template <class Container>
testing::AssertionResult same_bits(const Container& actual, const Container& expected) {
  using T = typename Container::value_type;
  return same_bits(std::span<const T>(actual), std::span<const T>(expected));
}

}  // namespace ovq::kernels::test
