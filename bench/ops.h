// `ovq bench ops`: times the torch ops, with the tensors that they allocate, against the machine's peak.
#pragma once

#include "bench/report.h"
#include "bench/runner.h"

namespace ovq::bench {

// Uses torch's current number of threads. One pass over the cases, if options do not say otherwise.
Report run_ops(BenchOptions options);

void run_recurrence_cases(Runner& runner);

}  // namespace ovq::bench
