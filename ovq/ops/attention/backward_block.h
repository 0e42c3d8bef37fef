// Backward of one block of rows on a team of threads; the result is the same for any team, bit for bit.
#pragma once

#include <span>

#include "ovq/ops/attention/kernel.h"

namespace ovq::kernels::detail {

void backward_block(const ReadKernels& kernels, const BackwardBlock& block, std::span<Workspace> team);

}  // namespace ovq::kernels::detail
