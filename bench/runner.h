// Runs benchmark cases: first the check against the reference, then, only if it held, the clock. The cases take turns
// in several passes, so that a busy neighbour of some seconds does not spoil all rounds of one of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/timing.h"
#include "ovq/kernels/memory/buffer.h"

namespace ovq::bench {

struct BenchOptions {
  bool quick = false;  // reduced sizes and fewer rounds
  std::string filter;  // only cases whose name contains it
  int passes = 0;      // over all cases; 0: 3, or 1 if quick

  bool wanted(const std::string& name) const { return name.find(filter) != std::string::npos; }
};

// Shows on a terminal what is being measured while an object of this class lives.
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

  int passes() const { return options_.passes > 0 ? options_.passes : quick() ? 1 : 3; }
  void begin_pass() { comparisons_.clear(); }

  bool quick() const { return options_.quick; }
  bool wanted(const std::string& name) const { return options_.wanted(name); }

  // `check` throws Mismatch if the code under test is wrong; `measure` fills in everything but the name. Nothing
  // happens if the case is not wanted. Later passes only add rounds, and only to cases that are nothing but a timing.
  void run(const std::string& name, const std::function<void()>& check, const std::function<CaseResult()>& measure);

  // One call to warm up and to see what the kernels allocate, then timed ones.
  CaseResult time(const std::function<void()>& work, double flops) const;

  const CaseResult* find(const std::string& name) const;  // nullptr if it was not timed
  // The quotient of two cases' best times; nothing if one is missing.
  void compare(const std::string& label, const std::string& numerator, const std::string& denominator);
  void add_comparison(const Figure& figure) { comparisons_.push_back(figure); }

  std::vector<CaseResult> cases() const { return cases_; }
  std::vector<Figure> comparisons() const { return comparisons_; }

 private:
  BenchOptions options_;
  std::vector<CaseResult> cases_;
  std::vector<Figure> comparisons_;
};

// Bytes the kernels hold at most while `work` runs, beyond what they held before.
template <class Work>
int64_t bytes_allocated(Work&& work) {
  kernels::reset_peak_memory();
  const int64_t before = kernels::memory_use().current;
  work();
  return kernels::memory_use().peak - before;
}

}  // namespace ovq::bench
