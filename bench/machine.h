// The machine a benchmark ran on, and how busy others kept it.
#pragma once

#include <cstdint>
#include <string>

#include "ovq/base/blas.h"

namespace ovq::bench {

struct Machine {
  std::string cpu;
  int cores = 0;  // this process may run on
  int64_t last_level_cache = 0;
  std::string isa;
  int threads = 0;
  std::string commit;
  std::string compiler;
  Blas blas;
  double load_average = 0;  // of the last minute, when the benchmark started
};

Machine describe_machine();

// CPU time that went elsewhere while an object of this class lived.
class Bystanders {
 public:
  Bystanders();
  // Mean number of cores that other processes, or other guests of the host, kept busy since construction.
  double busy_cores() const;

 private:
  struct Sample {
    double wall = 0, machine_busy = 0, stolen = 0, own = 0;  // seconds; the last three summed over cores
  };
  static Sample sample();
  Sample start_;
};

}  // namespace ovq::bench
