// Does a code path compute what the plain loops of ovq/kernels/reference compute? Asked before it is timed, with the
// threads, dims and options of the case at a length the plain loops can afford.
//
// Passes if the error against the plain loops in double is at most twice that of the plain loops in float, plus a
// floor. NaN fails.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "bench/flops.h"
#include "ovq/kernels/ovq_options.h"

namespace ovq::bench {

struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check_attention(const Shape& shape, int64_t window);                       // forward and backward
void check_ovq(const Shape& shape, const kernels::OvqOptions& options);         // forward and backward, one pass
void check_ovq_decode(const Shape& shape, const kernels::OvqOptions& options);  // one token at a time
void check_paper_baseline(const Shape& shape, const kernels::OvqOptions& options);

}  // namespace ovq::bench
