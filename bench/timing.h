// Wall-clock time of repeated work.
#pragma once

#include <algorithm>
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
  double seconds = 0;  // no further round once this much time has passed; 0: no limit
};

struct Timing {
  double best = 0, median = 0;
  int rounds = 0;
};

template <class Work>
Timing repeat(Work&& work, const Repetition& repetition) {
  std::vector<double> times;
  double total = 0;
  while (static_cast<int>(times.size()) < repetition.max_rounds) {
    if (static_cast<int>(times.size()) >= repetition.min_rounds && repetition.seconds > 0 && total > repetition.seconds)
      break;
    times.push_back(time_once(work));
    total += times.back();
  }
  return {*std::min_element(times.begin(), times.end()), median(times), static_cast<int>(times.size())};
}

}  // namespace ovq::bench
