// Products of many rows with a small matrix, as in layers: X W^T, Y W, and Y^T X for the gradient of W.
//   tile[r][lanes] <- tile[r][lanes] + a[r][k] * panel[k][lanes],  6 rows of up to four vectors (AVX-512; else two)
// The small matrix is packed in panels as wide as a tile; the rows are read in place. A library packs both, which for
// 64 columns costs a third of the product.
#if defined(OVQ_OPS_PRODUCTS_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_PRODUCTS_KERNEL_INL_H_
#undef OVQ_OPS_PRODUCTS_KERNEL_INL_H_
#else
#define OVQ_OPS_PRODUCTS_KERNEL_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

// Uses 24 of 32 registers for the sums, or 12 of 16.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86 ? 4 : 2;
inline constexpr int64_t kTileLanes = hn::MaxLanes(RowTag());
inline constexpr int64_t kTileColumns = kTileVectors * kTileLanes;

template <int R, int V>
struct ProductTile {
  RowVector sums[R][V];

  // An implicit constructor would not be compiled for the target and could not call NEON's vector constructors.
  HWY_INLINE ProductTile() {}

  HWY_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < V; ++x) sums[r][x] = hn::Zero(RowTag());
    }
  }

  // Adds rows of a, `row_stride` apart, whose k-th column is at a + k * depth_stride.
  HWY_INLINE void add(const float* HWY_RESTRICT a, ptrdiff_t row_stride, ptrdiff_t depth_stride,
                      const float* HWY_RESTRICT panel, int64_t depth) {
    const RowTag d;
#pragma GCC unroll 2
    for (int64_t k = 0; k < depth; ++k) {
      RowVector b[V];
#pragma GCC unroll 8
      for (int x = 0; x < V; ++x) b[x] = hn::LoadU(d, panel + x * kTileLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const RowVector one = hn::Set(d, a[r * row_stride]);
#pragma GCC unroll 8
        for (int x = 0; x < V; ++x) sums[r][x] = hn::MulAdd(one, b[x], sums[r][x]);
      }
      a += depth_stride;
      panel += V * kTileLanes;
    }
  }

  // Stores c <- sums + add for the first `columns`; a null `add` counts as 0.
  HWY_INLINE void store(const float* add, ptrdiff_t add_stride, int64_t columns, float* c, ptrdiff_t c_stride) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < V; ++x) {
        const int64_t left = columns - x * kTileLanes, count = left < kTileLanes ? left : kTileLanes;
        if (count <= 0) continue;
        RowVector sum = sums[r][x];
        if (add != nullptr) sum = hn::Add(sum, load_some(add + r * add_stride + x * kTileLanes, count));
        store_some(sum, count, c + r * c_stride + x * kTileLanes);
      }
    }
  }
};

template <class F>
HWY_INLINE void with_tile_rows(int64_t rows, F&& f) {
  switch (rows) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    default:
      return f(std::integral_constant<int, 6>());
  }
}

// f(V) with the number of vectors that `columns` need; panels have this width.
template <class F>
HWY_INLINE void with_tile_vectors(int64_t columns, F&& f) {
  if (columns <= kTileLanes) return f(std::integral_constant<int, 1>());
  if (columns <= 2 * kTileLanes) return f(std::integral_constant<int, 2>());
  if constexpr (kTileVectors > 2) {
    if (columns <= 3 * kTileLanes) return f(std::integral_constant<int, 3>());
    return f(std::integral_constant<int, 4>());
  }
}

HWY_INLINE int64_t panel_width(int64_t columns) { return (columns + kTileLanes - 1) / kTileLanes * kTileLanes; }

inline void pack_entry(const PackedMatrix& in, float* panels) {
  for (int64_t first = 0; first < in.columns; first += kTileColumns) {
    const int64_t count = in.columns - first < kTileColumns ? in.columns - first : kTileColumns;
    const int64_t width = panel_width(count);
    float* HWY_RESTRICT const panel = panels + first * in.depth;
    if (in.column_stride == 1) {
      for (int64_t k = 0; k < in.depth; ++k) {
        const float* HWY_RESTRICT const from = in.b + k * in.depth_stride + first;
        for (int64_t i = 0; i < count; ++i) panel[k * width + i] = from[i];
        for (int64_t i = count; i < width; ++i) panel[k * width + i] = 0;
      }
      continue;
    }
    for (int64_t i = 0; i < width; ++i) {
      const float* HWY_RESTRICT const from = in.b + (first + i) * in.column_stride;
      for (int64_t k = 0; k < in.depth; ++k) panel[k * width + i] = i < count ? from[k * in.depth_stride] : 0.0f;
    }
  }
}

inline void product_entry(const RowsProduct& in, float* c, int64_t c_stride) {
  for (int64_t first = 0; first < in.columns; first += kTileColumns) {
    const int64_t count = in.columns - first < kTileColumns ? in.columns - first : kTileColumns;
    const float* const panel = in.panels + first * in.depth;
    with_tile_vectors(count, [&](auto vectors) HWY_ATTR {
      for (int64_t row = 0; row < in.rows; row += kTileRows) {
        with_tile_rows(in.rows - row, [&](auto rows) HWY_ATTR {
          ProductTile<rows, vectors> tile;
          tile.clear();
          tile.add(in.a + row * in.a_stride, in.a_stride, 1, panel, in.depth);
          tile.store(in.add == nullptr ? nullptr : in.add + row * in.add_stride + first, in.add_stride, count,
                     c + row * c_stride + first, c_stride);
        });
      }
    });
  }
}

// c [rows][columns] <- sum_t a[t][row] b[t][column]
inline void outer_product_entry(const OuterProduct& in, float* scratch, float* c, int64_t c_stride) {
  for (int64_t start = 0; start < in.depth; start += kOuterDepth) {
    const int64_t depth = in.depth - start < kOuterDepth ? in.depth - start : kOuterDepth;
    for (int64_t first = 0; first < in.columns; first += kTileColumns) {
      const int64_t count = in.columns - first < kTileColumns ? in.columns - first : kTileColumns;
      pack_entry({.b = in.b + start * in.b_stride + first,
                  .depth_stride = in.b_stride,
                  .column_stride = 1,
                  .depth = depth,
                  .columns = count},
                 scratch);
      with_tile_vectors(count, [&](auto vectors) HWY_ATTR {
        for (int64_t row = 0; row < in.rows; row += kTileRows) {
          with_tile_rows(in.rows - row, [&](auto rows) HWY_ATTR {
            ProductTile<rows, vectors> tile;
            tile.clear();
            tile.add(in.a + start * in.a_stride + row, 1, in.a_stride, scratch, depth);
            float* const to = c + row * c_stride + first;
            tile.store(start == 0 ? nullptr : to, c_stride, count, to, c_stride);
          });
        }
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
