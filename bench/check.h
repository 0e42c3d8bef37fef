// Does a code path compute what the plain loops of ovq/kernels/reference compute? Asked before it is timed, with the
// threads, dims and options of the case at a length the plain loops can afford.
// Passes if ovq/base/calibration.h holds.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bench/flops.h"
#include "ovq/base/calibration.h"
#include "ovq/kernels/ovq_options.h"

namespace ovq::bench {

struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws Mismatch, about what `name` says.
void require_calibrated(const Calibration& calibration, const std::string& name);

// Of a length that the plain loops can afford: two chunks written, a third read in part.
Shape checked_shape(Shape shape, int64_t chunk);

void check_attention(const Shape& shape, int64_t window);                       // forward and backward
void check_ovq(const Shape& shape, const kernels::OvqOptions& options);         // forward and backward, one pass
void check_ovq_decode(const Shape& shape, const kernels::OvqOptions& options);  // one token at a time
// The same with a dictionary stored as bfloat16: the bits of float32 whose dictionary is rounded after each write.
void check_ovq_rounded_decode(const Shape& shape, const kernels::OvqOptions& options);
void check_paper_baseline(const Shape& shape, const kernels::OvqOptions& options);

}  // namespace ovq::bench
