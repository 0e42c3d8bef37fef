#include "bench/kernels.h"

#include "bench/cases.h"

namespace ovq::bench {

Report run_kernels(BenchOptions options) {
  if (options.passes == 0) options.passes = options.quick ? 1 : 3;
  return run_cases(options, [](Runner& runner) {
    run_ovq_cases(runner);
    run_small_ovq_cases(runner);
    run_baseline_cases(runner);
    run_decode_case(runner);
    run_attention_cases(runner);
  });
}

}  // namespace ovq::bench
