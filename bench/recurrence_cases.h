// The recurrences of ovq/ops: the kernels against the same composed of ATen calls.
#pragma once

#include <vector>

#include "bench/ops.h"

namespace ovq::bench {

std::vector<OpsCase> run_recurrences(const BenchOptions& options);

}  // namespace ovq::bench
