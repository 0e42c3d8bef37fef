// 2^x in float, as accurate as a float softmax needs: relative error below 1.7e-7 for x in [-126, 127], 0 below -127
// (and for -inf), almost 0 between -127 and -126, NaN for NaN, exactly 1 at 0. A polynomial of degree 5; with AVX-512 a
// table of 32 and one of degree 2: ten instructions instead of twelve.
#if defined(OVQ_CORE_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_CORE_EXP2_INL_H_
#undef OVQ_CORE_EXP2_INL_H_
#else
#define OVQ_CORE_EXP2_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3

// The bits of 2^(j / 32) minus j << 18.
alignas(64) inline constexpr int32_t kExp2Table[32] = {
    0x3F800000, 0x3F7ECD87, 0x3F7DAAC3, 0x3F7C980F, 0x3F7B95C2, 0x3F7AA43A, 0x3F79C3D3, 0x3F78F4F0,
    0x3F7837F0, 0x3F778D3A, 0x3F76F532, 0x3F767043, 0x3F75FED7, 0x3F75A15B, 0x3F75583F, 0x3F7523F6,
    0x3F7504F3, 0x3F74FBAF, 0x3F7508A4, 0x3F752C4D, 0x3F75672A, 0x3F75B9BE, 0x3F76248C, 0x3F76A81E,
    0x3F7744FD, 0x3F77FBB8, 0x3F78CCDF, 0x3F79B907, 0x3F7AC0C7, 0x3F7BE4BA, 0x3F7D257D, 0x3F7E83B3};

HWY_INLINE hn::Vec512<float> exp2(hn::Full512<float> d, hn::Vec512<float> x) {
  const hn::Full512<int32_t> di;
  // 2^-127 has a zero exponent, so results below it are 0. The order of operands keeps NaN: x86's maximum returns the
  // second.
  x = hn::Max(hn::Set(d, -127.0f), x);
  // Adding 1.5 * 2^18 leaves round(32 x) in the low bits of the sum: five bits index the table, the rest is the
  // exponent.
  const auto magic = hn::Set(d, 393216.0f);
  const auto shifted = hn::Add(x, magic);
  const auto fraction = hn::Sub(x, hn::Sub(shifted, magic));  // in [-1/64, 1/64]
  const auto index = hn::BitCast(di, shifted);
  const hn::Vec512<int32_t> entry{
      _mm512_permutex2var_epi32(hn::Load(di, kExp2Table).raw, index.raw, hn::Load(di, kExp2Table + 16).raw)};
  const auto power = hn::BitCast(d, hn::Add(entry, hn::ShiftLeft<18>(index)));
  const auto slope = hn::MulAdd(fraction, hn::Set(d, 0.240226507f), hn::Set(d, 0.693157341f));
  return hn::MulAdd(hn::Mul(power, fraction), slope, power);
}

#else

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // 2^-127 has a zero exponent, so results below it are 0. NaN must stay NaN: x86's maximum returns the second operand
  // then, elsewhere Max may drop NaN.
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
  // Multiplies instead of adding to the exponent, so that NaN stays NaN.
  const auto exponent = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23));
  return hn::Mul(p, hn::BitCast(d, exponent));
}

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
