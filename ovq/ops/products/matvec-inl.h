// Rows of a stored matrix times a few rows: y[r][o] <- w[o] . x[r] + add[r][o]. Each row of the matrix is read in order
// and multiplied with up to four rows of x, whose vectors come from the L1 cache. The bits of y[r] do not depend on the
// other rows in a pass: every row has its own sums.
//
// With matrices of 1024 x 1024 and two threads of a machine that reads 30 GB/s (35 on huge pages), reading one row of
// the matrix at a time reaches 30 (33), in bfloat16 30 (32). Manual prefetching is a tenth slower, four rows side by
// side a tenth to a third.
#if defined(OVQ_OPS_PRODUCTS_MATVEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_PRODUCTS_MATVEC_INL_H_
#undef OVQ_OPS_PRODUCTS_MATVEC_INL_H_
#else
#define OVQ_OPS_PRODUCTS_MATVEC_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

inline constexpr int kMatvecSums = 4;  // per row of x, to hide the latency of a multiply-add

HWY_INLINE RowVector load_stored(const float* from) { return hn::LoadU(RowTag(), from); }
HWY_INLINE RowVector load_stored(const Bfloat16* from) {
  const hn::Rebind<hwy::bfloat16_t, RowTag> narrow;
  return hn::PromoteTo(RowTag(), hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(from)));
}
HWY_INLINE float widened(float x) { return x; }
HWY_INLINE float widened(Bfloat16 x) { return to_float(x); }

// y[r * y_stride] <- w . x[r] + add[r * add_stride]
template <int R, class T>
HWY_INLINE void dot_stored(const T* HWY_RESTRICT w, int64_t depth, const float* HWY_RESTRICT x, int64_t x_stride,
                           const float* add, int64_t add_stride, float* y, int64_t y_stride) {
  const RowTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), step = kMatvecSums * lanes;
  RowVector sums[R][kMatvecSums];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int s = 0; s < kMatvecSums; ++s) sums[r][s] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + step <= depth; i += step) {
#pragma GCC unroll 4
    for (int s = 0; s < kMatvecSums; ++s) {
      const RowVector stored = load_stored(w + i + s * lanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums[r][s] = hn::MulAdd(stored, hn::LoadU(d, x + r * x_stride + i + s * lanes), sums[r][s]);
      }
    }
  }
  for (; i + lanes <= depth; i += lanes) {
    const RowVector stored = load_stored(w + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sums[r][0] = hn::MulAdd(stored, hn::LoadU(d, x + r * x_stride + i), sums[r][0]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    float rest = add == nullptr ? 0.0f : add[r * add_stride];
    for (int64_t k = i; k < depth; ++k) rest += widened(w[k]) * x[r * x_stride + k];
    const RowVector sum = hn::Add(hn::Add(sums[r][0], sums[r][1]), hn::Add(sums[r][2], sums[r][3]));
    y[r * y_stride] = rest + hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <class T>
HWY_NOINLINE void matvec_rows(const MatvecBlock& in, const T* w, float* y, int64_t y_stride) {
  const auto pass = [&](auto count, int64_t output, int64_t row) HWY_ATTR {
    const float* const add = in.add == nullptr ? nullptr : in.add + row * in.add_stride + output;
    dot_stored<count>(w + output * in.w_stride, in.depth, in.x + row * in.x_stride, in.x_stride, add, in.add_stride,
                      y + row * y_stride + output, y_stride);
  };
  for (int64_t output = 0; output < in.outputs; ++output) {
    int64_t row = 0;
    for (; row + 4 <= in.rows; row += 4) pass(std::integral_constant<int, 4>(), output, row);
    for (; row + 2 <= in.rows; row += 2) pass(std::integral_constant<int, 2>(), output, row);
    if (row < in.rows) pass(std::integral_constant<int, 1>(), output, row);
  }
}

inline void matvec_entry(const MatvecBlock& in, float* y, int64_t y_stride) {
  if (in.narrow != nullptr) return matvec_rows(in, in.narrow, y, y_stride);
  matvec_rows(in, in.wide, y, y_stride);
}

inline void widen_entry(const Bfloat16* HWY_RESTRICT from, int64_t count, float* HWY_RESTRICT to) {
  const RowTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load_stored(from + i), d, to + i);
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
