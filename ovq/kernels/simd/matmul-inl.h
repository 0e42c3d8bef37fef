// The one inner product of all kernels: a register tile of R broadcast rows times a panel of 16 lanes,
//   acc[r][lane] <- acc[r][lane] + sum_k scalars[r, k] * lanes[k][lane].
// 6 x 16 keeps 12 accumulators, 2 panel vectors and a broadcast in AVX2's 16 registers: 8 loads for 12 FMA.
#if defined(OVQ_KERNELS_SIMD_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_KERNELS_SIMD_MATMUL_INL_H_
#undef OVQ_KERNELS_SIMD_MATMUL_INL_H_
#else
#define OVQ_KERNELS_SIMD_MATMUL_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "ovq/kernels/simd/read_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PanelTag = hn::CappedTag<float, kPanel>;
using PanelVector = hn::Vec<PanelTag>;
inline constexpr int kLanes = hn::MaxLanes(PanelTag());
inline constexpr int kVectors = kPanel / kLanes;  // per panel
inline constexpr int kRun = 6;                    // rows of a register tile

// GCC 12 would load the vector again for each product that uses it.
HWY_INLINE PanelVector keep_in_register(PanelVector vector) {
#if HWY_TARGET == HWY_AVX2 && HWY_COMPILER_GCC
  auto raw = vector.raw;
  __asm__("" : "+x"(raw));
  vector.raw = raw;
#endif
  return vector;
}

template <int R>
HWY_INLINE void set_zero(PanelVector (&acc)[R][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) acc[r][x] = hn::Zero(PanelTag());
  }
}

// acc <- acc + b a. Written out where GCC 12 would choose a form that overwrites a factor, and then run out of
// registers.
HWY_INLINE void fused_add(PanelVector b, PanelVector a, PanelVector& acc) {
#if HWY_TARGET == HWY_AVX2 && HWY_COMPILER_GCC
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc.raw) : "x"(b.raw), "x"(a.raw));
#else
  acc = hn::MulAdd(b, a, acc);
#endif
}

template <int R>
HWY_INLINE void multiply_add_once(const float* HWY_RESTRICT lanes, const float* HWY_RESTRICT scalars,
                                  ptrdiff_t row_stride, PanelVector (&acc)[R][kVectors]) {
  const PanelTag d;
  PanelVector a[kVectors];
#pragma GCC unroll 8
  for (int x = 0; x < kVectors; ++x) a[x] = keep_in_register(hn::Load(d, lanes + x * kLanes));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const PanelVector b = hn::Set(d, scalars[r * row_stride]);
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) fused_add(b, a[x], acc[r][x]);
  }
}

// Two steps of k at a time: with 8 loads and the loop's own instructions beside 12 FMA, a core that shares its front
// end with another hardware thread is bound by the number of instructions.
template <int R>
HWY_INLINE void multiply_add(const float* HWY_RESTRICT lanes, const float* HWY_RESTRICT scalars, ptrdiff_t row_stride,
                             ptrdiff_t depth_stride, int64_t depth, PanelVector (&acc)[R][kVectors],
                             ptrdiff_t lanes_stride = kPanel) {
  if (depth % 2 != 0) {
    multiply_add_once(lanes, scalars, row_stride, acc);
    lanes += lanes_stride;
    scalars += depth_stride;
  }
  const float* const end = lanes + (depth - depth % 2) * lanes_stride;
#pragma GCC unroll 1
  for (; lanes != end; lanes += 2 * lanes_stride, scalars += 2 * depth_stride) {
    multiply_add_once(lanes, scalars, row_stride, acc);
    multiply_add_once(lanes + lanes_stride, scalars + depth_stride, row_stride, acc);
  }
}

// f(R, first) for runs of R rows that cover `count`: sixes, and no run of one or two where it can be avoided (a short
// run is bound by the latency of its few accumulators).
template <class F>
HWY_INLINE void for_row_runs(int64_t count, F&& f) {
  int64_t rest = count % kRun;
  if (rest == 1 || rest == 2) rest += kRun;
  if (rest > count) rest = count;
  int64_t first = 0;
  for (; first < count - rest; first += kRun) f(std::integral_constant<int, kRun>(), first);
  if (rest > kRun) {
    f(std::integral_constant<int, 4>(), first);
    first += 4;
    rest -= 4;
  }
  switch (rest) {
    case 1:
      return f(std::integral_constant<int, 1>(), first);
    case 2:
      return f(std::integral_constant<int, 2>(), first);
    case 3:
      return f(std::integral_constant<int, 3>(), first);
    case 4:
      return f(std::integral_constant<int, 4>(), first);
    case 5:
      return f(std::integral_constant<int, 5>(), first);
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
