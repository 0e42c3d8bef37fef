// The gate between the products of a gated MLP, of rows [gate | up]: a = silu(gate) * up.
#if defined(OVQ_OPS_GATED_MLP_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_GATED_MLP_KERNEL_INL_H_
#undef OVQ_OPS_GATED_MLP_KERNEL_INL_H_
#else
#define OVQ_OPS_GATED_MLP_KERNEL_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

inline void gate_entry(const float* gate_up, int64_t rows, int64_t width, float* a) {
  const RowTag d;
  for (int64_t row = 0; row < rows; ++row) {
    const float* HWY_RESTRICT const gate = gate_up + row * 2 * width;
    float* HWY_RESTRICT const to = a + row * width;
    for_vectors(width, [&](int64_t i, int64_t count) HWY_ATTR {
      const RowVector g = load_some(gate + i, count), u = load_some(gate + width + i, count);
      store_some(hn::Mul(hn::Mul(g, sigmoid(d, g)), u), count, to + i);
    });
  }
}

// d_gate = d_a up s (1 + gate (1 - s)), d_up = d_a gate s
inline void gate_backward_entry(const float* gate_up, int64_t rows, int64_t width, float* d_a, float* d_gate_up) {
  const RowTag d;
  const RowVector one = hn::Set(d, 1.0f);
  for (int64_t row = 0; row < rows; ++row) {
    const float* HWY_RESTRICT const gate = gate_up + row * 2 * width;
    float* HWY_RESTRICT const d_gate = d_gate_up + row * 2 * width;
    float* HWY_RESTRICT const both = d_a + row * width;
    for_vectors(width, [&](int64_t i, int64_t count) HWY_ATTR {
      const RowVector g = load_some(gate + i, count), u = load_some(gate + width + i, count);
      const RowVector gradient = load_some(both + i, count);
      const RowVector s = sigmoid(d, g), silu = hn::Mul(g, s);
      const RowVector slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
      store_some(hn::Mul(gradient, hn::Mul(u, slope)), count, d_gate + i);
      store_some(hn::Mul(gradient, silu), count, d_gate + width + i);
      store_some(hn::Mul(silu, u), count, both + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
