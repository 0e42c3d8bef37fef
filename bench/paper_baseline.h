// The pseudo-code of the paper's Appendix B in plain C++, as a baseline: unfused, with the scores of a chunk against
// the whole dictionary in memory, first those of the queries, then in a second pass those of the keys. Ordinary loops,
// -O3 for the compiler's baseline instruction set (SSE2 on x86-64), heads spread over the threads. What the pseudo-code
// leaves open (rounding of the growth, the founding chunk, ties) is as in docs/semantics.md.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/kernels/ovq_attention.h"

namespace ovq::bench {

// Default options but for `chunk`, `centroids` and `growth`; not packed. `assignments` as in ovq_attention_forward.
void paper_ovq_forward(const kernels::OvqInputs& inputs, kernels::View<float> o, std::span<int32_t> assignments);

}  // namespace ovq::bench
