// Wall-clock time of repeated work.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

namespace ovq::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Work>
double time_once(Work&& work) {
  const auto start = Clock::now();
  work();
  return seconds_since(start);
}

struct Repetition {
  int min_rounds = 3;
  int max_rounds = 10;
  double seconds = 0;  // no further round begins after this time; 0: no limit
};

struct Timing {
  double best = 0, median = 0;
  std::vector<double> seconds;  // of each round
};

inline Timing summary(const std::vector<double>& seconds) {
  return {*std::min_element(seconds.begin(), seconds.end()), median(seconds), seconds};
}

// Alternates rounds of several kinds of work, so that disturbances affect all of them.
template <class... Work>
std::array<Timing, sizeof...(Work)> alternate(const Repetition& repetition, Work&&... work) {
  std::array<std::vector<double>, sizeof...(Work)> times;
  double total = 0;
  for (int round = 0; round < repetition.max_rounds; ++round) {
    if (round >= repetition.min_rounds && repetition.seconds > 0 && total > repetition.seconds) break;
    size_t kind = 0;
    for (const double seconds : {time_once(work)...}) {
      times[kind++].push_back(seconds);
      total += seconds;
    }
  }
  std::array<Timing, sizeof...(Work)> timings;
  std::transform(times.begin(), times.end(), timings.begin(), summary);
  return timings;
}

template <class Work>
Timing repeat(Work&& work, const Repetition& repetition) {
  return alternate(repetition, work)[0];
}

}  // namespace ovq::bench
