// `ovq bench kernels`: time, FLOP/s, share of the machine's peak and memory of every kernel. Every kernel is checked
// before it is timed.
#pragma once

#include "bench/report.h"
#include "bench/runner.h"

namespace ovq::bench {

// Uses kernels::max_threads() threads. Three passes over the cases, or one if quick, unless options say otherwise.
Report run_kernels(BenchOptions options);

}  // namespace ovq::bench
