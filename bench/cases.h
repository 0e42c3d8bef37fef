// The cases of `ovq bench kernels`, a function for each kernel.
#pragma once

#include "bench/runner.h"

namespace ovq::bench {

void run_ovq_cases(Runner& runner);        // forward and backward, cost against length, memory
void run_small_ovq_cases(Runner& runner);  // shapes of small models; many narrow heads against few wide ones
void run_baseline_cases(Runner& runner);   // the paper's pseudo-code beside the kernel
void run_decode_case(Runner& runner);      // one token at a time from states that are not in cache
void run_attention_cases(Runner& runner);  // causal, with and without a window

}  // namespace ovq::bench
