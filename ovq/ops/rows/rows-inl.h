// Vectors of rows, whose lengths need not be multiples of a vector: what the kernels of several ops share.
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

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
