// Products and triangular solves of small dense matrices, the building blocks of a recurrence's chunks.
//
//   out <- factor * start + diag(first_factors) left_1 right_1 + left_2 right_2 + left_3 right_3
//
// A left matrix is read one number at a time and broadcast, so it may be transposed. A right matrix is row-major and
// read in vectors. Columns are padded with zeros to multiples of kPad; rows and depths are not padded. A register tile
// of 6 x 4 vectors (6 x 2 with 16 registers) needs 10 (8) loads for 24 (12) multiply-adds.
#if defined(OVQ_OPS_RECURRENCE_DENSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_RECURRENCE_DENSE_INL_H_
#undef OVQ_OPS_RECURRENCE_DENSE_INL_H_
#else
#define OVQ_OPS_RECURRENCE_DENSE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "ovq/ops/recurrence/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, kPad>;
using Vector = hn::Vec<Tag>;
inline constexpr int kLanes = hn::MaxLanes(Tag());
inline constexpr int kTileRows = 6;
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
inline constexpr int kTileVectors = 4;
#else
inline constexpr int kTileVectors = 2;
#endif
inline constexpr int kSolveRows = 4;

// acc <- acc + b a with both factors unchanged: see matmul-inl.h; GCC 12 generates worse code without it.
HWY_INLINE void fused_add(Vector b, Vector a, Vector& acc) {
#if HWY_TARGET == HWY_AVX2 && HWY_COMPILER_GCC
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc.raw) : "x"(b.raw), "x"(a.raw));
#else
  acc = hn::MulAdd(b, a, acc);
#endif
}

HWY_INLINE Vector keep_in_register(Vector vector) {
#if HWY_TARGET == HWY_AVX2 && HWY_COMPILER_GCC
  auto raw = vector.raw;
  __asm__("" : "+x"(raw));
  vector.raw = raw;
#elif HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86 && HWY_COMPILER_GCC
  auto raw = vector.raw;
  __asm__("" : "+v"(raw));
  vector.raw = raw;
#endif
  return vector;
}

// The nonzero elements of a square left matrix: all, those with depth <= row, or those with depth >= row.
enum class Part { whole, lower, upper };

struct Term {
  const float* left = nullptr;  // element (i, k) at i * row_step + k * depth_step
  ptrdiff_t row_step = 0, depth_step = 1;
  const float* right = nullptr;  // row k at k * stride
  ptrdiff_t stride = 0;
  int64_t depth = 0;
  Part part = Part::whole;
};

HWY_INLINE Term rows_of(const float* left, ptrdiff_t left_stride, const float* right, ptrdiff_t stride, int64_t depth,
                        Part part = Part::whole) {
  return {left, left_stride, 1, right, stride, depth, part};
}
HWY_INLINE Term columns_of(const float* left, ptrdiff_t left_stride, const float* right, ptrdiff_t stride,
                           int64_t depth, Part part = Part::whole) {
  return {left, 1, left_stride, right, stride, depth, part};
}

struct Product {
  int64_t rows = 0, columns = 0;
  float* out = nullptr;
  ptrdiff_t out_stride = 0;
  Term first = {}, second = {}, third = {};  // terms of depth 0 are ignored
  const float* start = nullptr;              // nullptr: zeros
  ptrdiff_t start_stride = 0;
  float factor = 1;
  const float* first_factors = nullptr;  // nullptr: ones
  float* copy = nullptr;                 // a second destination with the same row stride; nullptr: none
  bool past_caches = false;              // writes the result, or the copy if there is one, bypassing the caches
  bool lower = false;                    // only the columns up to the row are needed; the others are undefined
  // The row numbers for first_factors, `lower` and Part::lower, ascending; nullptr: 0, 1, ...
  const int64_t* index = nullptr;

  HWY_INLINE int64_t index_of(int64_t row) const { return index == nullptr ? row : index[row]; }
};

template <int R, int V>
HWY_INLINE void add_step(const float* HWY_RESTRICT left, ptrdiff_t row_step, const float* HWY_RESTRICT right,
                         Vector (&acc)[R][V]) {
  const Tag d;
  Vector a[V];
#pragma GCC unroll 8
  for (int x = 0; x < V; ++x) a[x] = keep_in_register(hn::LoadU(d, right + x * kLanes));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vector b = hn::Set(d, left[r * row_step]);
#pragma GCC unroll 8
    for (int x = 0; x < V; ++x) fused_add(b, a[x], acc[r][x]);
  }
}

template <int R, int V>
HWY_INLINE void add_steps(const Term& term, int64_t row, int64_t column, int64_t begin, int64_t end,
                          Vector (&acc)[R][V]) {
  const float* left = term.left + row * term.row_step + begin * term.depth_step;
  const float* right = term.right + begin * term.stride + column;
  const ptrdiff_t row_step = term.row_step, depth_step = term.depth_step, stride = term.stride;
  int64_t count = end - begin;
  if (count > 0 && count % 2 != 0) {
    add_step(left, row_step, right, acc);
    left += depth_step;
    right += stride;
    --count;
  }
#pragma GCC unroll 1
  for (; count > 0; count -= 2) {
    add_step(left, row_step, right, acc);
    add_step(left + depth_step, row_step, right + stride, acc);
    left += 2 * depth_step;
    right += 2 * stride;
  }
}

template <int R, int V>
HWY_INLINE void add_term(const Product& product, const Term& term, int64_t row, int64_t column, Vector (&acc)[R][V]) {
  int64_t begin = 0, end = term.depth;
  if (term.part == Part::lower) {
    const int64_t last = product.index_of(row + R - 1);
    end = last + 1 < end ? last + 1 : end;
  } else if (term.part == Part::upper) {
    begin = row;
  }
  add_steps(term, row, column, begin, end, acc);
}

// acc <- product.factor * product.start
template <int R, int V>
HWY_INLINE void load_start(const Product& product, int64_t row, int64_t column, Vector (&acc)[R][V]) {
  const Tag d;
  const Vector factor = hn::Set(d, product.factor);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float* const from = product.start + (row + r) * product.start_stride + column;
#pragma GCC unroll 8
    for (int x = 0; x < V; ++x) acc[r][x] = hn::Mul(factor, hn::LoadU(d, from + x * kLanes));
  }
}

// acc <- diag(product.first_factors) acc + product.factor * product.start
template <int R, int V>
HWY_INLINE void scale_and_add_start(const Product& product, int64_t row, int64_t column, Vector (&acc)[R][V]) {
  const Tag d;
  const Vector factor = hn::Set(d, product.factor);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vector of_row = hn::Set(d, product.first_factors[product.index_of(row + r)]);
#pragma GCC unroll 8
    for (int x = 0; x < V; ++x) acc[r][x] = hn::Mul(of_row, acc[r][x]);
    if (product.start == nullptr) continue;
    const float* const from = product.start + (row + r) * product.start_stride + column;
#pragma GCC unroll 8
    for (int x = 0; x < V; ++x) acc[r][x] = hn::MulAdd(factor, hn::LoadU(d, from + x * kLanes), acc[r][x]);
  }
}

template <int R, int V>
HWY_INLINE void store_tile(const Vector (&acc)[R][V], float* to, ptrdiff_t stride, bool past_caches) {
  const Tag d;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < V; ++x) {
      if (past_caches) {
        hn::Stream(acc[r][x], d, to + r * stride + x * kLanes);
      } else {
        hn::StoreU(acc[r][x], d, to + r * stride + x * kLanes);
      }
    }
  }
}

template <int R, int V>
HWY_NOINLINE void product_tile(const Product& product, int64_t row, int64_t column) {
  const Tag d;
  Vector acc[R][V];
  const bool scaled = product.first_factors != nullptr;
  if (scaled || product.start == nullptr) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < V; ++x) acc[r][x] = hn::Zero(d);
    }
  } else {
    load_start(product, row, column, acc);
  }
  add_term(product, product.first, row, column, acc);
  if (scaled) scale_and_add_start(product, row, column, acc);
  for (const Term* term : {&product.second, &product.third}) {
    if (term->depth > 0) add_term(product, *term, row, column, acc);
  }
  const ptrdiff_t at = row * product.out_stride + column;
  const bool has_copy = product.copy != nullptr;
  store_tile(acc, product.out + at, product.out_stride, product.past_caches && !has_copy);
  if (has_copy) store_tile(acc, product.copy + at, product.out_stride, product.past_caches);
}

template <int V>
HWY_INLINE void product_rows(const Product& product, int64_t row, int64_t count, int64_t column) {
  switch (count) {
    case 1:
      return product_tile<1, V>(product, row, column);
    case 2:
      return product_tile<2, V>(product, row, column);
    case 3:
      return product_tile<3, V>(product, row, column);
    case 4:
      return product_tile<4, V>(product, row, column);
    case 5:
      return product_tile<5, V>(product, row, column);
    default:
      return product_tile<kTileRows, V>(product, row, column);
  }
}

HWY_INLINE void product_rows(const Product& product, int64_t row, int64_t count, int64_t column, int64_t vectors) {
  switch (vectors) {
    case 1:
      return product_rows<1>(product, row, count, column);
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
    case 2:
      return product_rows<2>(product, row, count, column);
    case 3:
      return product_rows<3>(product, row, count, column);
#endif
    default:
      return product_rows<kTileVectors>(product, row, count, column);
  }
}

struct NothingAhead {
  void fetch() {}
};

// `ahead` prefetches something every few tiles.
template <class Ahead>
HWY_INLINE void multiply_tiles(const Product& product, Ahead& ahead) {
  const int64_t all = product.columns / kLanes;
  for (int64_t first = 0; first < all; first += kTileVectors) {
    const int64_t vectors = all - first < kTileVectors ? all - first : kTileVectors;
    for (int64_t row = 0; row < product.rows; row += kTileRows) {
      const int64_t count = product.rows - row < kTileRows ? product.rows - row : kTileRows;
      int64_t wanted = vectors;
      if (product.lower) {
        const int64_t needed = product.index_of(row + count - 1) / kLanes + 1 - first;
        wanted = needed < vectors ? needed : vectors;
      }
      if (wanted > 0) product_rows(product, row, count, first * kLanes, wanted);
      ahead.fetch();
    }
  }
}

// Tiles of a product
HWY_INLINE int64_t tiles_of(int64_t rows, int64_t columns) {
  constexpr int64_t kWidth = kTileVectors * kLanes;
  return (rows + kTileRows - 1) / kTileRows * ((columns + kWidth - 1) / kWidth);
}

HWY_NOINLINE void multiply(const Product& product) {
  NothingAhead nothing;
  multiply_tiles(product, nothing);
}

// x [n, columns] <- (I - A)^(-1) x, or with the transpose of A; A [n, n] is strictly lower.
struct Solve {
  int64_t n = 0, columns = 0;
  const float* a = nullptr;
  ptrdiff_t a_stride = 0;
  float* x = nullptr;
  ptrdiff_t x_stride = 0;
  bool transposed = false;
};

template <int R, int V>
HWY_NOINLINE void solve_tile(const Solve& solve, int64_t row, int64_t column) {
  const Tag d;
  Vector acc[R][V];
  float* const x = solve.x + column;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = hn::LoadU(d, x + (row + r) * solve.x_stride + v * kLanes);
  }
  if (solve.transposed) {
    const Term term = columns_of(solve.a, solve.a_stride, solve.x, solve.x_stride, solve.n);
    add_steps(term, row, column, row + R, solve.n, acc);
#pragma GCC unroll 8
    for (int r = R - 2; r >= 0; --r) {
#pragma GCC unroll 8
      for (int s = R - 1; s > r; --s) {
        const Vector b = hn::Set(d, solve.a[(row + s) * solve.a_stride + row + r]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) fused_add(b, acc[s][v], acc[r][v]);
      }
    }
  } else {
    const Term term = rows_of(solve.a, solve.a_stride, solve.x, solve.x_stride, solve.n);
    add_steps(term, row, column, 0, row, acc);
#pragma GCC unroll 8
    for (int r = 1; r < R; ++r) {
#pragma GCC unroll 8
      for (int s = 0; s < r; ++s) {
        const Vector b = hn::Set(d, solve.a[(row + r) * solve.a_stride + row + s]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) fused_add(b, acc[s][v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], d, x + (row + r) * solve.x_stride + v * kLanes);
  }
}

template <int V>
HWY_INLINE void solve_columns(const Solve& solve, int64_t column) {
  const int64_t whole = solve.n / kSolveRows * kSolveRows;
  if (solve.transposed) {
    for (int64_t row = solve.n - 1; row >= whole; --row) solve_tile<1, V>(solve, row, column);
    for (int64_t row = whole - kSolveRows; row >= 0; row -= kSolveRows) {
      solve_tile<kSolveRows, V>(solve, row, column);
    }
  } else {
    for (int64_t row = 0; row < whole; row += kSolveRows) solve_tile<kSolveRows, V>(solve, row, column);
    for (int64_t row = whole; row < solve.n; ++row) solve_tile<1, V>(solve, row, column);
  }
}

HWY_NOINLINE void solve_unit(const Solve& solve) {
  const int64_t all = solve.columns / kLanes;
  int64_t first = 0;
  for (; first + kTileVectors <= all; first += kTileVectors) solve_columns<kTileVectors>(solve, first * kLanes);
  for (; first < all; ++first) solve_columns<1>(solve, first * kLanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
