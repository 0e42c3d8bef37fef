// Keys and values in their stored form, float32 or bfloat16, read once and in order: products of a group of keys with a
// few rows, weighted sums of values, and widening to float32.
//
// A 32-bit lane of bfloat16 holds two columns. A shift by 16 gives the lower one as a float, a mask the upper one: two
// cheap operations widen two vectors, and nothing crosses lanes.
#if defined(OVQ_OPS_ATTENTION_STORED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_STORED_ROWS_INL_H_
#undef OVQ_OPS_ATTENTION_STORED_ROWS_INL_H_
#else
#define OVQ_OPS_ATTENTION_STORED_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ovq/core/bfloat16.h"
#include "ovq/core/matmul-inl.h"
#include "ovq/ops/attention/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kKeyGroup = 16;  // keys scored together

template <class T>
inline constexpr bool kNarrow = std::is_same_v<T, Bfloat16>;
template <class T>
inline constexpr int64_t kLineOf = 64 / static_cast<int64_t>(sizeof(T));  // elements of a cache line

HWY_INLINE float as_float(float x) { return x; }
HWY_INLINE float as_float(Bfloat16 x) { return to_float(x); }

// Prefetches rows that will be read next, a line at a time in memory order. Other heads may lie between them.
template <class T>
class RowsAhead {
 public:
  HWY_INLINE RowsAhead(const T* first, int64_t stride, int64_t dim) : row_(first), stride_(stride), dim_(dim) {}
  HWY_INLINE void fetch_line() {
    hwy::Prefetch(row_ + column_);
    column_ += kLineOf<T>;
    if (column_ < dim_) return;
    column_ = 0;
    row_ += stride_;
  }

 private:
  const T* row_;
  int64_t stride_, dim_, column_ = 0;
};

// The lower and the upper columns of pairs of bfloat16.
HWY_INLINE PanelVector lower_columns(PanelVector pairs) {
  const hn::RebindToUnsigned<PanelTag> du;
  return hn::BitCast(PanelTag(), hn::ShiftLeft<16>(hn::BitCast(du, pairs)));
}
HWY_INLINE PanelVector upper_columns(PanelVector pairs) {
  const hn::RebindToUnsigned<PanelTag> du;
  return hn::BitCast(PanelTag(), hn::And(hn::BitCast(du, pairs), hn::Set(du, 0xffff0000u)));
}
HWY_INLINE PanelVector load_pairs(const Bfloat16* from) {
  const hn::RebindToUnsigned<PanelTag> du;
  return hn::BitCast(PanelTag(), hn::LoadU(du, reinterpret_cast<const uint32_t*>(from)));
}

HWY_INLINE PanelVector load_wide(const float* from) { return hn::LoadU(PanelTag(), from); }
HWY_INLINE PanelVector load_wide(const Bfloat16* from) {
  const hn::Rebind<hwy::bfloat16_t, PanelTag> narrow;
  return hn::PromoteTo(PanelTag(), hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(from)));
}

#if HWY_TARGET == HWY_SCALAR

template <int R, class T>
HWY_NOINLINE void dot_key_group(const float* HWY_RESTRICT rows, const T* HWY_RESTRICT keys, int64_t stride,
                                int64_t count, int64_t dim, float (&dot)[R][kKeyGroup]) {
  for (int r = 0; r < R; ++r) {
    for (int64_t key = 0; key < count; ++key) {
      float sum = 0.0f;
      for (int64_t i = 0; i < dim; ++i) sum = rows[r * dim + i] * as_float(keys[key * stride + i]) + sum;
      dot[r][key] = sum;
    }
  }
}

#else

inline constexpr int kKeyVectors = kKeyGroup / kLanes;

// As dot_key_group(). Whole: there are kKeyGroup keys, and all their addresses are computed from four of them, since
// sixteen do not fit in registers.
template <int R, bool Whole, class T>
HWY_NOINLINE void dot_keys(const float* HWY_RESTRICT rows, const T* HWY_RESTRICT keys, int64_t stride, int64_t count,
                           int64_t dim, float (&dot)[R][kKeyGroup]) {
  const PanelTag d;
  constexpr int64_t kColumns = 16 / static_cast<int64_t>(sizeof(T));  // of a 128-bit block
  PanelVector acc[R][kKeyVectors];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < kKeyVectors; ++g) acc[r][g] = hn::Zero(d);
  }
  const T* fours[kKeyGroup / 4];  // every fourth key, at the next columns
  for (int64_t four = 0; four < kKeyGroup / 4; ++four) fours[four] = keys + 4 * four * stride;
  const T* at[kKeyGroup];  // with fewer keys: each of them, then the last one repeatedly
  for (int64_t key = 0; key < kKeyGroup; ++key) at[key] = keys + std::min(key, count - 1) * stride;
  RowsAhead<T> ahead(keys + kKeyGroup * stride, stride, dim);
  const auto add = [&](int g, int64_t column, PanelVector of_keys) HWY_ATTR {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][g] = hn::MulAdd(of_keys, hn::Set(d, rows[r * dim + column]), acc[r][g]);
  };
  // The vector holds one column, or a pair of columns, of each key.
  const auto add_columns = [&](int g, int64_t column, PanelVector of_keys) HWY_ATTR {
    if constexpr (kNarrow<T>) {
      add(g, column, lower_columns(of_keys));
      add(g, column + 1, upper_columns(of_keys));
    } else {
      add(g, column, of_keys);
    }
  };
  const int64_t whole = dim / kColumns * kColumns;
  for (int64_t i = 0; i < whole; i += kColumns) {
    for (int line = 0; line < 4; ++line) ahead.fetch_line();
#pragma GCC unroll 4
    for (int g = 0; g < kKeyVectors; ++g) {
      const T* group[kLanes];
#pragma GCC unroll 16
      for (int key = 0; key < kLanes; ++key) {
        const int64_t k = g * kLanes + key;
        group[key] = Whole ? fours[k / 4] + k % 4 * stride : at[k] + i;
      }
      PanelVector a = load_blocks(d, group, 0), b = load_blocks(d, group + 1, 0);
      PanelVector c = load_blocks(d, group + 2, 0), e = load_blocks(d, group + 3, 0);
      transpose(d, a, b, c, e);
      add_columns(g, i, a);
      add_columns(g, i + kColumns / 4, b);
      add_columns(g, i + kColumns / 2, c);
      add_columns(g, i + 3 * kColumns / 4, e);
    }
#pragma GCC unroll 4
    for (const T*& four : fours) four += kColumns;
  }
  for (int64_t i = whole; i < dim; ++i) {
    alignas(64) float column[kKeyGroup];
    for (int64_t key = 0; key < kKeyGroup; ++key) column[key] = as_float(at[key][i]);
    for (int g = 0; g < kKeyVectors; ++g) add(g, i, hn::Load(d, column + g * kLanes));
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < kKeyVectors; ++g) hn::Store(acc[r][g], d, dot[r] + g * kLanes);
  }
}

// dot[row][key] <- rows[row] . keys[key] for up to kKeyGroup keys; rows are `dim` floats apart. The next group is
// prefetched row by row: the transposed access alone loses half the bandwidth.
template <int R, class T>
HWY_INLINE void dot_key_group(const float* HWY_RESTRICT rows, const T* HWY_RESTRICT keys, int64_t stride, int64_t count,
                              int64_t dim, float (&dot)[R][kKeyGroup]) {
  if (count == kKeyGroup) return dot_keys<R, true>(rows, keys, stride, count, dim, dot);
  dot_keys<R, false>(rows, keys, stride, count, dim, dot);
}

#endif  // HWY_TARGET == HWY_SCALAR

inline constexpr int64_t kValueRows = 8;               // prefetched
inline constexpr int64_t kSummedColumns = 8 * kLanes;  // summed in registers

// acc[column] <- acc[column] + sum_i p[i] values[i][column] over V vectors of columns
template <int V, class T>
HWY_INLINE void add_columns_of_values(const float* HWY_RESTRICT p, const T* HWY_RESTRICT values, int64_t stride,
                                      int64_t count, float* HWY_RESTRICT acc) {
  const PanelTag d;
  PanelVector sums[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sums[v] = hn::LoadU(d, acc + v * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    const PanelVector weight = hn::Set(d, p[i]);
    const T* row = values + i * stride;
    for (int64_t line = 0; line < V * kLanes; line += kLineOf<T>) hwy::Prefetch(row + kValueRows * stride + line);
    if constexpr (kNarrow<T> && V > 1) {
#pragma GCC unroll 4
      for (int v = 0; v < V; v += 2) {
        const PanelVector pairs = load_pairs(row + v * kLanes);
        sums[v] = hn::MulAdd(weight, lower_columns(pairs), sums[v]);
        sums[v + 1] = hn::MulAdd(weight, upper_columns(pairs), sums[v + 1]);
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[v] = hn::MulAdd(weight, load_wide(row + v * kLanes), sums[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) hn::StoreU(sums[v], d, acc + v * kLanes);
}

// The same over all columns, for up to kValueRows keys. Bandwidth is best if rows are read whole, one after another, so
// the sums are kept in registers, up to 8 vectors. For bfloat16, each whole pair of column vectors has the lower
// columns of all lanes first, then the upper ones: see in_order().
template <class T>
HWY_INLINE void add_values(const float* HWY_RESTRICT p, const T* HWY_RESTRICT values, int64_t stride, int64_t count,
                           int64_t dim, float* HWY_RESTRICT acc) {
  int64_t column = 0;
  const auto add = [&](auto vectors) HWY_ATTR {
    add_columns_of_values<vectors>(p, values + column, stride, count, acc + column);
    column += vectors * kLanes;
  };
  while (column + 8 * kLanes <= dim) add(std::integral_constant<int, 8>());
  if (column + 4 * kLanes <= dim) add(std::integral_constant<int, 4>());
  if (column + 2 * kLanes <= dim) add(std::integral_constant<int, 2>());
  if (column + kLanes <= dim) add(std::integral_constant<int, 1>());
  const hn::CappedTag<float, 1> one;
  for (; column < dim; ++column) {
    auto sum = hn::LoadU(one, acc + column);
    for (int64_t i = 0; i < count; ++i) {
      sum = hn::MulAdd(hn::Set(one, p[i]), hn::Set(one, as_float(values[i * stride + column])), sum);
    }
    hn::StoreU(sum, one, acc + column);
  }
}

// Sorts the sums of add_values() of bfloat16 by column.
HWY_INLINE void in_order(float* HWY_RESTRICT acc, int64_t dim) {
  float lower[kLanes];
  for (int64_t column = 0; column + 2 * kLanes <= dim; column += 2 * kLanes) {
    std::memcpy(lower, acc + column, sizeof(lower));
    for (int64_t i = 0; i < kLanes; ++i) {
      const float upper = acc[column + kLanes + i];  // read before it is overwritten: 2 i + 1 <= kLanes + i
      acc[column + 2 * i] = lower[i];
      acc[column + 2 * i + 1] = upper;
    }
  }
}

// to <- from, `count` elements, a multiple of kPadding
HWY_NOINLINE void widen(const Bfloat16* HWY_RESTRICT from, int64_t count, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < count; i += kPadding) {
    for (int64_t j = 0; j < kPadding; ++j) to[i + j] = to_float(from[i + j]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
