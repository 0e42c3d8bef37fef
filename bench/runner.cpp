#include "bench/runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "bench/check.h"
#include "bench/machine.h"
#include "bench/probe.h"

namespace ovq::bench {
namespace {

// Size of the buffer for the bandwidth, in last-level caches: large enough that little of it stays cached.
constexpr int64_t kCachesRead = 6;
constexpr int64_t kLeastBytesRead = int64_t{128} << 20;

bool on_terminal() { return isatty(STDERR_FILENO) != 0; }

}  // namespace

CurrentCase::CurrentCase(const std::string& name) {
  if (on_terminal()) fmt::print(stderr, "\r\x1b[K{} ...", name);
}

CurrentCase::~CurrentCase() {
  if (on_terminal()) fmt::print(stderr, "\r\x1b[K");
}

void Runner::run(const std::string& name, const std::function<void()>& check,
                 const std::function<CaseResult()>& measure) {
  if (!wanted(name)) return;
  const auto known = std::find_if(cases_.begin(), cases_.end(), [&](const CaseResult& x) { return x.name == name; });
  if (known != cases_.end()) {
    if (!known->mismatch.empty() || !known->figures.empty()) return;
    const CurrentCase shown(name);
    const Bystanders bystanders;
    std::vector<double> seconds = measure().timing.seconds;
    // every pass has equal weight
    known->bystander_cores += (bystanders.busy_cores() - known->bystander_cores) / ++known->passes;
    seconds.insert(seconds.end(), known->timing.seconds.begin(), known->timing.seconds.end());
    known->timing = summary(seconds);
    return;
  }
  const CurrentCase shown(name);
  CaseResult result;
  try {
    check();
    const Bystanders bystanders;
    result = measure();
    result.bystander_cores = bystanders.busy_cores();
    result.passes = 1;
  } catch (const Mismatch& mismatch) {
    result.mismatch = mismatch.what();
  }
  result.name = name;
  cases_.push_back(result);
}

CaseResult Runner::time(const std::function<void()>& work, double flops) const {
  return time(work, flops, bytes_allocated(work));
}

CaseResult Runner::time(const std::function<void()>& work, double flops, int64_t bytes) const {
  CaseResult result{.flops = flops, .bytes_allocated = bytes};
  result.timing = repeat(work, quick() ? Repetition{.min_rounds = 2, .max_rounds = 8, .seconds = 0.5}
                                       : Repetition{.min_rounds = 2, .max_rounds = 40, .seconds = 4});
  return result;
}

const CaseResult* Runner::find(const std::string& name) const {
  for (const CaseResult& result : cases_)
    if (result.name == name && result.mismatch.empty()) return &result;
  return nullptr;
}

void Runner::compare(const std::string& label, const std::string& numerator, const std::string& denominator) {
  const CaseResult* a = find(numerator);
  const CaseResult* b = find(denominator);
  if (a != nullptr && b != nullptr) comparisons_.push_back({label, a->timing.best / b->timing.best, "x"});
}

Report run_cases(const BenchOptions& options, const std::function<void(Runner&)>& run_pass) {
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
  for (int pass = 0; pass < options.passes; ++pass) {
    runner.begin_pass();
    run_pass(runner);
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
