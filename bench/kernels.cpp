#include "bench/kernels.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "bench/cases.h"
#include "bench/machine.h"
#include "bench/probe.h"

namespace ovq::bench {
namespace {

// Size of the buffer for the bandwidth, in last-level caches: large enough that little of it stays cached.
constexpr int64_t kCachesRead = 6;
constexpr int64_t kLeastBytesRead = int64_t{128} << 20;

}  // namespace

Report run_kernels(const BenchOptions& options) {
  const auto start = Clock::now();
  const Bystanders bystanders;
  Report report{.machine = describe_machine()};
  const int threads = report.machine.threads;
  const double peak_seconds = options.quick ? 0.3 : 1;

  const std::string isa = report.machine.isa;
  report.best_isa = best_isa();
  if (report.best_isa != isa) report.best_isa_peak = measure_fma_peak(report.best_isa, threads, peak_seconds);
  report.fma_peak_before = measure_fma_peak(isa, threads, peak_seconds);
  report.read_bytes = std::max(kCachesRead * report.machine.last_level_cache, kLeastBytesRead);
  report.read_bandwidth = measure_read_bandwidth(report.read_bytes, threads, options.quick ? 5 : 20);

  Runner runner(options);
  for (int pass = 0; pass < runner.passes(); ++pass) {
    runner.begin_pass();
    run_ovq_cases(runner);
    run_small_ovq_cases(runner);
    run_baseline_cases(runner);
    run_decode_case(runner);
    run_attention_cases(runner);
  }

  report.fma_peak_after = measure_fma_peak(isa, threads, peak_seconds);
  report.fma_peak = std::max(report.fma_peak_before, report.fma_peak_after);
  report.cases = runner.cases();
  report.comparisons = runner.comparisons();
  report.bystander_cores = bystanders.busy_cores();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace ovq::bench
