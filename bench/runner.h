// Runs benchmark cases. Each case is checked against the reference and timed only if it matches. The cases take turns
// in several passes, so that some seconds of load from other processes do not spoil all rounds of one case.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/timing.h"
#include "ovq/core/buffer.h"

namespace ovq::bench {

struct BenchOptions {
  bool quick = false;  // reduced sizes and fewer rounds
  std::string filter;  // only cases whose name contains this
  int passes = 0;      // over all cases; 0: as many as the benchmark takes

  bool wanted(const std::string& name) const { return name.find(filter) != std::string::npos; }
};

// Shows the current case on a terminal during its lifetime.
class CurrentCase {
 public:
  explicit CurrentCase(const std::string& name);
  ~CurrentCase();
  CurrentCase(const CurrentCase&) = delete;
  CurrentCase& operator=(const CurrentCase&) = delete;
};

class Runner {
 public:
  explicit Runner(const BenchOptions& options) : options_(options) {}

  void begin_pass() { comparisons_.clear(); }

  bool quick() const { return options_.quick; }
  bool wanted(const std::string& name) const { return options_.wanted(name); }

  // `check` throws Mismatch if the code under test is wrong; `measure` sets all fields but the name. Skips cases that
  // the filter excludes. Later passes only add rounds, and only to pure timings.
  void run(const std::string& name, const std::function<void()>& check, const std::function<CaseResult()>& measure);

  // The first call warms up and counts the kernels' allocations; the following ones are timed.
  CaseResult time(const std::function<void()>& work, double flops) const;
  // For work that has been done once, allocating `bytes`.
  CaseResult time(const std::function<void()>& work, double flops, int64_t bytes) const;

  const CaseResult* find(const std::string& name) const;  // nullptr if it was not timed
  // Reports the ratio of two cases' best times; nothing if one is missing.
  void compare(const std::string& label, const std::string& numerator, const std::string& denominator);
  void add_comparison(const Figure& figure) { comparisons_.push_back(figure); }

  std::vector<CaseResult> cases() const { return cases_; }
  std::vector<Figure> comparisons() const { return comparisons_; }

 private:
  BenchOptions options_;
  std::vector<CaseResult> cases_;
  std::vector<Figure> comparisons_;
};

// A report of the cases that `run_pass` runs, in options.passes passes, between measurements of the machine's peaks.
Report run_cases(const BenchOptions& options, const std::function<void(Runner&)>& run_pass);

// The peak memory of the kernels while `work` runs, beyond what they held before.
template <class Work>
int64_t bytes_allocated(Work&& work) {
  kernels::reset_peak_memory();
  const int64_t before = kernels::memory_use().current;
  work();
  return kernels::memory_use().peak - before;
}

}  // namespace ovq::bench
