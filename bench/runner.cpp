#include "bench/runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "bench/check.h"
#include "bench/machine.h"

namespace ovq::bench {
namespace {

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
  CaseResult result{.flops = flops, .bytes_allocated = bytes_allocated(work)};
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

}  // namespace ovq::bench
