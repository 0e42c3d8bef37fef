// Checks that a code path computes the same as the plain loops of ovq/ops/*/reference.h, within ovq/base/calibration.h.
// Runs before the timing, with the threads, dims and options of the case, at a length that the plain loops can handle.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "bench/flops.h"
#include "ovq/base/calibration.h"
#include "ovq/core/view.h"
#include "ovq/ops/attention/attention.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"

namespace ovq::bench {

struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws Mismatch, which begins with `name`.
void require_calibrated(const Calibration& calibration, const std::string& name);

// The shape with a shorter length for the plain loops: two written chunks and part of a third.
Shape checked_shape(Shape shape, int64_t chunk);

// Results of a call, forward and backward, for one sequence with as many query heads as kv heads.
void require_attention(const kernels::AttentionInputs& inputs, kernels::View<const float> d_o,
                       kernels::View<const float> o, const kernels::AttentionGradients& gradients);
void require_ovq(const kernels::OvqInputs& inputs, std::span<const int32_t> assignments, kernels::View<const float> d_o,
                 kernels::View<const float> o, const kernels::OvqGradients& gradients);

void check_attention(const Shape& shape, int64_t window);                       // forward and backward
void check_ovq(const Shape& shape, const kernels::OvqOptions& options);         // forward and backward, one pass
void check_ovq_decode(const Shape& shape, const kernels::OvqOptions& options);  // one token at a time
// The same with a dictionary stored as bfloat16: must equal float32 with a dictionary rounded after each write, bit for
// bit.
void check_ovq_rounded_decode(const Shape& shape, const kernels::OvqOptions& options);
void check_paper_baseline(const Shape& shape, const kernels::OvqOptions& options);

}  // namespace ovq::bench
