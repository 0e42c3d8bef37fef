// The pseudo-code of the paper's Appendix B in plain C++, as a baseline. It is unfused: the scores of a chunk against
// the whole dictionary are held in memory, first those of the queries, then in a second pass those of the keys.
// Ordinary loops, -O3 for the compiler's baseline instruction set (SSE2 on x86-64), heads distributed over threads.
// Details that the pseudo-code leaves open (rounding of the growth, the founding chunk, ties) are as in
// docs/semantics.md.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/ops/ovq_attention/ovq_attention.h"

namespace ovq::bench {

// Default options except `chunk`, `centroids` and `growth`; not packed. `assignments` as in ovq_attention_forward.
void paper_ovq_forward(const kernels::OvqInputs& inputs, kernels::View<float> o, std::span<int32_t> assignments);

}  // namespace ovq::bench
