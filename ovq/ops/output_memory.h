// Memory for what the fused ops return.
#pragma once

#include <ATen/ATen.h>

namespace ovq::ops {

// at::empty in float32 on the CPU. A large tensor asks for huge pages: the page faults of fresh memory took a
// twentieth of forward and backward over 16,384 tokens.
at::Tensor empty_output(at::IntArrayRef sizes);

}  // namespace ovq::ops
