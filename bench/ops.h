// `ovq bench ops`: compares the fused torch ops with the same composed of ATen calls, in time and memory, in one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/runner.h"
#include "bench/timing.h"

namespace ovq::bench {

struct OpsCase {
  std::string name;
  std::string mismatch;  // how fused and plain differ; such a case is not timed
  Timing fused, plain;
  int64_t fused_peak = 0, plain_peak = 0;  // bytes beyond the inputs: tensors and the kernels' buffers

  double bystander_cores = 0;  // kept busy by others meanwhile

  double speedup() const { return plain.best / fused.best; }
  double memory_ratio() const { return static_cast<double>(plain_peak) / static_cast<double>(fused_peak); }
};

struct OpsReport {
  Machine machine;
  double bystander_cores = 0;
  double seconds = 0;
  std::vector<OpsCase> cases;

  bool matched() const;
};

// Uses torch's current number of threads.
OpsReport run_ops(const BenchOptions& options);

std::string to_table(const OpsReport& report);
std::string to_json(const OpsReport& report);

}  // namespace ovq::bench
