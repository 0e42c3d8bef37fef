// log2(x) in float for positive, finite, normal x: relative error below 2.2e-7.
//   x = 2^e m with m in [1/sqrt(2), sqrt(2)),  t = (m - 1) / (m + 1),  log2(x) = e + 2 / ln(2) (t + t^3/3 + ... +
//   t^9/9)
#if defined(OVQ_CORE_LOG2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_CORE_LOG2_INL_H_
#undef OVQ_CORE_LOG2_INL_H_
#else
#define OVQ_CORE_LOG2_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::Vec<D>>
HWY_INLINE V log2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Subtracts the bits of sqrt(1/2), so that the remaining exponent is that of x / m.
  const auto offset = hn::Set(di, 0x3F3504F3);
  const auto bits = hn::BitCast(di, x);
  const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, offset));
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const V one = hn::Set(d, 1.0f);
  const V t = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const V square = hn::Mul(t, t);
  V series = hn::Set(d, 0.3205989f);  // 2 / (9 ln 2)
  series = hn::MulAdd(series, square, hn::Set(d, 0.4121986f));
  series = hn::MulAdd(series, square, hn::Set(d, 0.5770780f));
  series = hn::MulAdd(series, square, hn::Set(d, 0.9617967f));
  series = hn::MulAdd(series, square, hn::Set(d, 2.8853901f));
  return hn::MulAdd(series, t, hn::ConvertTo(d, exponent));
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
