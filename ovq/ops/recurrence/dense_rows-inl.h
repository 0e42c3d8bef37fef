// Operations on rows of small dense matrices: transpose, sum, scale, load from tensors and store to them.
#if defined(OVQ_OPS_RECURRENCE_DENSE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_RECURRENCE_DENSE_ROWS_INL_H_
#undef OVQ_OPS_RECURRENCE_DENSE_ROWS_INL_H_
#else
#define OVQ_OPS_RECURRENCE_DENSE_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "ovq/ops/recurrence/dense-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
using Quad = hn::FixedTag<float, 4>;

// Four floats of each row at from, from + 4 stride, from + 8 stride ..., for as many rows as fit.
template <class D>
HWY_INLINE hn::Vec<D> load_quads(D tag, const float* from, ptrdiff_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(tag, from);
  } else {
    const hn::Half<D> half;
    const ptrdiff_t rows = hn::MaxLanes(half);
    return hn::Combine(tag, load_quads(half, from + rows * stride, stride), load_quads(half, from, stride));
  }
}

// to[j][i] <- from[i][j] for i < lanes and j < `columns`, at most 4; reads four columns of `from`.
template <class D>
HWY_INLINE void transpose_block(D tag, const float* HWY_RESTRICT from, ptrdiff_t from_stride, int64_t columns,
                                float* HWY_RESTRICT to, ptrdiff_t to_stride) {
  const hn::Repartition<double, D> wide;
  const auto a = load_quads(tag, from, from_stride), b = load_quads(tag, from + from_stride, from_stride);
  const auto c = load_quads(tag, from + 2 * from_stride, from_stride),
             d = load_quads(tag, from + 3 * from_stride, from_stride);
  const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(tag, a, b));
  const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(tag, a, b));
  const auto cd_low = hn::BitCast(wide, hn::InterleaveLower(tag, c, d));
  const auto cd_high = hn::BitCast(wide, hn::InterleaveUpper(tag, c, d));
  hn::StoreU(hn::BitCast(tag, hn::InterleaveLower(wide, ab_low, cd_low)), tag, to);
  if (columns > 1) hn::StoreU(hn::BitCast(tag, hn::InterleaveUpper(wide, ab_low, cd_low)), tag, to + to_stride);
  if (columns > 2) hn::StoreU(hn::BitCast(tag, hn::InterleaveLower(wide, ab_high, cd_high)), tag, to + 2 * to_stride);
  if (columns > 3) hn::StoreU(hn::BitCast(tag, hn::InterleaveUpper(wide, ab_high, cd_high)), tag, to + 3 * to_stride);
}
#endif

// to[j][i] <- from[i][j] for i < rows, j < columns; fills the rest of the padded rows of `to` with zeros.
HWY_NOINLINE void transpose(const float* HWY_RESTRICT from, ptrdiff_t from_stride, int64_t rows, int64_t columns,
                            float* HWY_RESTRICT to, ptrdiff_t to_stride) {
  int64_t whole = 0;
#if HWY_TARGET != HWY_SCALAR
  const auto blocks = [&](auto tag) HWY_ATTR {
    const int64_t lanes = hn::MaxLanes(tag);
    for (; whole + lanes <= rows; whole += lanes) {
      for (int64_t j = 0; j < columns; j += 4) {
        transpose_block(tag, from + whole * from_stride + j, from_stride, columns - j, to + j * to_stride + whole,
                        to_stride);
      }
    }
  };
  blocks(Tag());
  blocks(Quad());
#endif
  const int64_t end = padded(rows);
  if (whole == end) return;
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = whole; i < rows; ++i) to[j * to_stride + i] = from[i * from_stride + j];
    for (int64_t i = rows; i < end; ++i) to[j * to_stride + i] = 0.0f;
  }
}

HWY_INLINE float dot(const float* a, const float* b, int64_t columns) {
  const Tag d;
  Vector even = hn::Zero(d), odd = hn::Zero(d);
  int64_t j = 0;
  for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), even);
    odd = hn::MulAdd(hn::LoadU(d, a + j + kLanes), hn::LoadU(d, b + j + kLanes), odd);
  }
  if (j + kLanes <= columns) {
    even = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), even);
    j += kLanes;
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; j < columns; ++j) sum += a[j] * b[j];
  return sum;
}

// to <- factor * from over `size` numbers of a tensor, zeros up to the padding
HWY_INLINE void load_row(const float* from, int64_t size, float factor, float* HWY_RESTRICT to) {
  const Tag d;
  const Vector f = hn::Set(d, factor);
  int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) hn::StoreU(hn::Mul(f, hn::LoadU(d, from + j)), d, to + j);
  for (; j < size; ++j) to[j] = factor * from[j];
  for (const int64_t end = padded(size); j < end; ++j) to[j] = 0.0f;
}

// to <- factor * from over `size` numbers without padding; bypasses the caches only for whole vectors.
HWY_INLINE void store_row(const float* HWY_RESTRICT from, int64_t size, float factor, float* to,
                          bool past_caches = false) {
  const Tag d;
  const Vector f = hn::Set(d, factor);
  int64_t j = 0;
  if (past_caches) {
    for (; j < size; j += kLanes) hn::Stream(hn::Mul(f, hn::LoadU(d, from + j)), d, to + j);
    return;
  }
  for (; j + kLanes <= size; j += kLanes) hn::StoreU(hn::Mul(f, hn::LoadU(d, from + j)), d, to + j);
  for (; j < size; ++j) to[j] = factor * from[j];
}

// rows of `to` <- factors[i] * rows of `from`, padded
HWY_INLINE void scale_rows(const float* from, ptrdiff_t stride, const float* factors, int64_t rows, int64_t columns,
                           float* to) {
  const Tag d;
  for (int64_t i = 0; i < rows; ++i) {
    const Vector f = hn::Set(d, factors[i]);
    for (int64_t j = 0; j < columns; j += kLanes) {
      hn::StoreU(hn::Mul(f, hn::LoadU(d, from + i * stride + j)), d, to + i * stride + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
