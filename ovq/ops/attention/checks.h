// Checks of queries, keys and values: each throws std::invalid_argument that names the argument.
#pragma once

#include <span>

#include "ovq/core/checks.h"

namespace ovq::kernels {

// The largest |beta| accepted. Below it float32 can hold logits and sums for unit queries and keys and values around
// one.
inline constexpr float kLargestBeta = 1e35f;

// q [B, Tq, Hq, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], beta [Hq]
void check_inputs(const char* op, const View<const float>& q, const View<const float>& k, const View<const float>& v,
                  std::span<const float> beta);

}  // namespace ovq::kernels
