// The machine that a benchmark ran on, and its load from other processes.
#pragma once

#include <cstdint>
#include <string>

#include "ovq/base/blas.h"

namespace ovq::bench {

struct Machine {
  std::string cpu;
  int cores = 0;  // available to this process
  int64_t last_level_cache = 0;
  std::string isa;
  int threads = 0;
  std::string commit;
  std::string compiler;
  Blas blas;
  double load_average = 0;  // of the last minute, when the benchmark started
};

Machine describe_machine();

// CPU time used by others during the lifetime of the object.
class Bystanders {
 public:
  Bystanders();
  // Mean number of cores kept busy by other processes or other guests of the host since construction.
  double busy_cores() const;

 private:
  struct Sample {
    double wall = 0, machine_busy = 0, stolen = 0, own = 0;  // seconds; the last three summed over cores
  };
  static Sample sample();
  Sample start_;
};

}  // namespace ovq::bench
