// Norms and gates of rows. Simple loops are left to the compiler, which also compiles them for the target.
#if defined(OVQ_OPS_ROWS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ROWS_ROWS_INL_H_
#undef OVQ_OPS_ROWS_ROWS_INL_H_
#else
#define OVQ_OPS_ROWS_ROWS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "ovq/core/exp2-inl.h"
#include "ovq/ops/rows/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RowTag = hn::ScalableTag<float>;
using RowVector = hn::Vec<RowTag>;

HWY_INLINE float row_dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t n) {
  const RowTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  RowVector even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  if (i + lanes <= n) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    i += lanes;
  }
  float rest = 0;
  for (; i < n; ++i) rest += a[i] * b[i];
  return rest + hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// 1 / (1 + exp(-x)), 0 below -88, NaN for NaN
HWY_INLINE RowVector sigmoid(RowTag d, RowVector x) {
  const RowVector power = hn::Mul(x, hn::Set(d, -1.44269504f)), one = hn::Set(d, 1.0f);
  return hn::IfThenZeroElse(hn::Gt(power, hn::Set(d, 127.0f)), hn::Div(one, hn::Add(one, exp2(d, power))));
}

// f(first, count) for whole vectors with count = lanes, and once for the remainder.
template <class F>
HWY_INLINE void for_vectors(int64_t n, F&& f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(RowTag()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

// The first `count` lanes; the others are loaded as 0 and not stored.
HWY_INLINE RowVector load_some(const float* from, int64_t count) {
  const RowTag d;
  if (count == static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, from);
  HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
  return hn::Load(d, padded);
}

HWY_INLINE void store_some(RowVector x, int64_t count, float* to) {
  const RowTag d;
  if (count == static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(x, d, to);
  HWY_ALIGN float padded[hn::MaxLanes(d)];
  hn::Store(x, d, padded);
  for (int64_t i = 0; i < count; ++i) to[i] = padded[i];
}

inline void norm_entry(const NormRows& in, float* y, float* r) {
  const int64_t width = in.width;
  const float* HWY_RESTRICT const weight = in.weight;
  for (int64_t row = 0; row < in.rows; ++row) {
    const float* HWY_RESTRICT const x = in.x + row * width;
    float* HWY_RESTRICT const to = y + row * width;
    const float inverse = 1.0f / __builtin_sqrtf(row_dot(x, x, width) / static_cast<float>(width) + in.eps);
    r[row] = inverse;
    for (int64_t i = 0; i < width; ++i) to[i] = x[i] * inverse * weight[i];
  }
}

// With g = d_y weight: d_x = r (g - x r^2 mean(g x)), d_weight = sum d_y x r.
inline void norm_backward_entry(const NormRows& in, const NormRowsBackward& out) {
  const int64_t width = in.width;
  const float* HWY_RESTRICT const weight = in.weight;
  float* HWY_RESTRICT const d_weight = out.d_weight;
  for (int64_t i = 0; i < width; ++i) d_weight[i] = 0;
  for (int64_t row = 0; row < in.rows; ++row) {
    const float* HWY_RESTRICT const x = in.x + row * width;
    const float* HWY_RESTRICT const d_y = out.d_y + row * width;
    float* HWY_RESTRICT const d_x = out.d_x + row * width;
    const float inverse = out.r[row];
    for (int64_t i = 0; i < width; ++i) {
      d_x[i] = d_y[i] * weight[i];
      d_weight[i] += d_y[i] * (x[i] * inverse);
    }
    const float projection = inverse * inverse / static_cast<float>(width) * row_dot(d_x, x, width);
    if (out.add == nullptr) {
      for (int64_t i = 0; i < width; ++i) d_x[i] = inverse * (d_x[i] - x[i] * projection);
    } else {
      const float* HWY_RESTRICT const add = out.add + row * width;
      for (int64_t i = 0; i < width; ++i) d_x[i] = add[i] + inverse * (d_x[i] - x[i] * projection);
    }
  }
}

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
