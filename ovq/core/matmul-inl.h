// The inner product shared by all kernels: a register tile of R broadcast rows times a panel of lanes,
//   acc[r][lane] <- acc[r][lane] + sum_k scalars[r, k] * lanes[k][lane].
// AVX2: 6 x 16 keeps 12 accumulators, 2 panel vectors and a broadcast in 16 registers: 8 loads for 12 FMA.
// AVX-512: 12 x 32 keeps 24 accumulators in 32 registers: 14 loads for 24 FMA. One vector per row would need as many
// loads as FMA: 76 to 90 % of the peak at best.
#if defined(OVQ_CORE_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_CORE_MATMUL_INL_H_
#undef OVQ_CORE_MATMUL_INL_H_
#else
#define OVQ_CORE_MATMUL_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PanelTag = hn::CappedTag<float, 16>;
using PanelVector = hn::Vec<PanelTag>;
inline constexpr int kLanes = hn::MaxLanes(PanelTag());
inline constexpr int kVectors = kLanes == 16 ? 2 : 16 / kLanes;  // per panel
inline constexpr int64_t kPanel = kVectors * kLanes;             // rows of a panel: 32 with AVX-512, 16 elsewhere
inline constexpr int kRun = kLanes == 16 ? 12 : 6;               // rows of a register tile

// The vectors of a panel that take part in a product. If only rows of the first or of the last vector see a key, half a
// panel is enough.
template <int First, int Count>
struct Slice {
  static constexpr int kBegin = First, kEnd = First + Count;
};
inline constexpr bool kHalves = kVectors == 2;
using Whole = Slice<0, kVectors>;
using Lower = Slice<0, kHalves ? 1 : kVectors>;
using Upper = Slice<kHalves ? 1 : 0, kHalves ? 1 : kVectors>;

// f(slice) for the first `rows` rows of a panel
template <class F>
HWY_INLINE void for_used_vectors(int64_t rows, F&& f) {
  if constexpr (kHalves) {
    if (rows <= kLanes) return f(Lower());
  }
  f(Whole());
}
inline int64_t used_lanes(int64_t rows) { return kHalves && rows <= kLanes ? kLanes : kPanel; }

template <int R>
using Tile = PanelVector[R][kVectors];

#undef OVQ_NAME_INSTRUCTIONS
#if HWY_COMPILER_GCC && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
#define OVQ_NAME_INSTRUCTIONS 1
#else
#define OVQ_NAME_INSTRUCTIONS 0
#endif

// Otherwise GCC 12 loads the vector again for each product that uses it.
HWY_INLINE PanelVector keep_in_register(PanelVector vector) {
#if OVQ_NAME_INSTRUCTIONS
  auto raw = vector.raw;
  __asm__("" : "+v"(raw));
  vector.raw = raw;
#endif
  return vector;
}

template <class S = Whole, int R>
HWY_INLINE void set_zero(Tile<R>& acc) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) acc[r][x] = hn::Zero(PanelTag());
  }
}

// acc <- acc + b a. Written in assembly where GCC 12 would choose a form that overwrites a factor, and then spill
// registers.
HWY_INLINE void fused_add(PanelVector b, PanelVector a, PanelVector& acc) {
#if OVQ_NAME_INSTRUCTIONS
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc.raw) : "v"(b.raw), "v"(a.raw));
#else
  acc = hn::MulAdd(b, a, acc);
#endif
}

// The addresses of every fourth row of a tile: the others are one, two and three strides away, which an addressing mode
// can express. GCC 12 would otherwise keep a multiple of the stride per row and spill registers.
template <int R>
struct RowPointers {
  static constexpr int kCount = (R + 3) / 4;
  const float* every_fourth[kCount];
  ptrdiff_t stride;

  HWY_INLINE RowPointers(const float* scalars, ptrdiff_t row_stride) : stride(row_stride) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) every_fourth[i] = opaque(scalars + 4 * i * stride);
  }
  HWY_INLINE void advance(ptrdiff_t by) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) every_fourth[i] = opaque(every_fourth[i] + by);
  }
  HWY_INLINE const float* at(int r) const { return every_fourth[r / 4] + r % 4 * stride; }

  static HWY_INLINE const float* opaque(const float* pointer) {
#if OVQ_NAME_INSTRUCTIONS
    __asm__("" : "+r"(pointer));
#endif
    return pointer;
  }
};

template <class S, int R>
HWY_INLINE void multiply_add_once(const float* HWY_RESTRICT lanes, const RowPointers<R>& rows, ptrdiff_t offset,
                                  Tile<R>& acc) {
  const PanelTag d;
  PanelVector a[kVectors];
#pragma GCC unroll 8
  for (int x = S::kBegin; x < S::kEnd; ++x) a[x] = keep_in_register(hn::Load(d, lanes + x * kLanes));
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const PanelVector b = hn::Set(d, rows.at(r)[offset]);
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) fused_add(b, a[x], acc[r][x]);
  }
}

// Two steps of k at a time: with 8 loads and the loop's own instructions beside 12 FMA, a core that shares its front
// end with another hardware thread is limited by the number of instructions.
template <class S = Whole, int R>
HWY_INLINE void multiply_add(const float* HWY_RESTRICT lanes, const float* HWY_RESTRICT scalars, ptrdiff_t row_stride,
                             ptrdiff_t depth_stride, int64_t depth, Tile<R>& acc, ptrdiff_t lanes_stride = kPanel) {
  RowPointers<R> rows(scalars, row_stride);
  if (depth % 2 != 0) {
    multiply_add_once<S>(lanes, rows, 0, acc);
    lanes += lanes_stride;
    rows.advance(depth_stride);
  }
  const float* const end = lanes + (depth - depth % 2) * lanes_stride;
#pragma GCC unroll 1
  for (; lanes != end; lanes += 2 * lanes_stride) {
    multiply_add_once<S>(lanes, rows, 0, acc);
    multiply_add_once<S>(lanes + lanes_stride, rows, depth_stride, acc);
    rows.advance(2 * depth_stride);
  }
}

// f(R, first) for runs of R rows that cover `count`: whole runs first, then as few and as long runs as the available
// sizes allow. A short run is bound by the latency of its few accumulators, so four rows cost no more than one.
template <class F>
HWY_INLINE void for_row_runs(int64_t count, F&& f) {
  constexpr bool kLong = kRun > 8;
  int64_t rest = count % kRun;
  if (!kLong && (rest == 1 || rest == 2) && rest < count) rest += kRun;
  int64_t first = 0;
  for (; first < count - rest; first += kRun) f(std::integral_constant<int, kRun>(), first);
  if constexpr (kLong) {
    if (rest >= 8) {
      f(std::integral_constant<int, 8>(), first);
      first += 8;
      rest -= 8;
    }
  }
  if (rest > kRun || (kLong && rest >= 4)) {
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
      if constexpr (!kLong) f(std::integral_constant<int, 4>(), first);
      return;
    case 5:
      if constexpr (!kLong) f(std::integral_constant<int, 5>(), first);
      return;
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
