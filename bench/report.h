// The results of a benchmark, as a readable table and as JSON with the same content.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/timing.h"

namespace ovq::bench {

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
};

struct CaseResult {
  std::string name;
  std::string mismatch;  // how the result differs from the reference; such a case is not timed
  Timing timing;
  double flops = 0;                        // 0: not relevant for the case
  std::optional<int64_t> bytes_allocated;  // peak memory of the kernels beyond inputs and outputs
  std::vector<Figure> figures;             // specific to the case
  double bystander_cores = 0;              // kept busy by others during the timing, mean over the passes
  int passes = 0;
};

struct Report {
  Machine machine;
  double fma_peak = 0;  // FLOP/s of the kernels' instruction set, the best seen before and after the cases;
                        // percentages refer to it
  double fma_peak_before = 0, fma_peak_after = 0;
  std::string best_isa;       // of the machine
  double best_isa_peak = 0;   // if the kernels run on another; otherwise 0
  double read_bandwidth = 0;  // bytes/s
  int64_t read_bytes = 0;     // size of the buffer read
  double bystander_cores = 0;
  double seconds = 0;
  std::vector<CaseResult> cases;
  std::vector<Figure> comparisons;  // between cases of this run

  bool matched() const;                    // every case
  std::vector<std::string> notes() const;  // why the timings may be unreliable
};

std::string to_table(const Report& report);
std::string to_json(const Report& report);

}  // namespace ovq::bench
