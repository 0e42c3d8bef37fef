// Memory for what the ops return, and for weights.
#pragma once

#include <ATen/ATen.h>

namespace ovq::ops {

// at::empty on the CPU. A large tensor asks for huge pages: the page faults of fresh memory took a
// twentieth of forward and backward over 16,384 tokens.
at::Tensor empty_output(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);

// at::empty on the CPU for what is read over and over, as weights: aligned to huge pages and on them, if it fills some.
// Two threads read 400 MB at 35 GB/s there, and at 30 on small pages.
at::Tensor empty_weights(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);

}  // namespace ovq::ops
