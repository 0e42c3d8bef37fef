// 2^x in float: relative error below 1.3e-7 for x in [-126, 127], 0 below -126.5 (and for -inf), NaN for NaN, exactly 1
// at 0. A polynomial of degree 5: what a float softmax needs, and no more.
#if defined(OVQ_KERNELS_SIMD_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_KERNELS_SIMD_EXP2_INL_H_
#undef OVQ_KERNELS_SIMD_EXP2_INL_H_
#else
#define OVQ_KERNELS_SIMD_EXP2_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // 2^-127 has a zero exponent, which makes it 0 below. NaN must stay NaN: of two operands x86's maximum then takes the
  // second, elsewhere Max may drop it.
  const V lowest = hn::Set(d, -127.0f);
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  x = hn::Max(lowest, x);
#else
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
#endif
  // Adding 1.5 * 2^23 leaves round(x) in the low bits of the sum.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::Add(x, magic);
  const V fraction = hn::Sub(x, hn::Sub(shifted, magic));  // in [-0.5, 0.5]
  V p = hn::Set(d, 0x1.5bba13d60443ep-10f);
  p = hn::MulAdd(p, fraction, hn::Set(d, 0x1.3cea873eb39e8p-7f));
  p = hn::MulAdd(p, fraction, hn::Set(d, 0x1.c6b752dea8452p-5f));
  p = hn::MulAdd(p, fraction, hn::Set(d, 0x1.ebf9bb8aa9d5dp-3f));
  p = hn::MulAdd(p, fraction, hn::Set(d, 0x1.62e429203835ap-1f));
  p = hn::MulAdd(p, fraction, hn::Set(d, 1.0f));
  // A product, not an addition to the exponent: NaN stays NaN.
  const auto exponent = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23));
  return hn::Mul(p, hn::BitCast(d, exponent));
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
