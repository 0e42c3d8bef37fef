// Matrix products of layers: many rows with a matrix that fits into a cache.
//   product         c = a b + add        a [rows, depth], b [depth, columns]
//   outer_product   c = a^T b            a [depth, rows], b [depth, columns]
// b is packed in panels as wide as a tile of registers, the rows of a are read in place. FLOPs: 2 rows depth columns.
//
// With 8,092 rows on one core with AVX-512 (peak 175 GFLOP/s) the kernels reached, over 9 shapes from 64 x 64 to
// 768 x 128, 140-161 GFLOP/s in x w^T where OpenBLAS had 97-140, and was never faster. In y^T x they are faster with at
// most 64 rows or columns of the result (102-135 against 88-120) and slower with more (89 against 128 for 768 x 128):
// those, other sizes, few rows and other instruction sets are for a library.
#pragma once

#include <cstdint>
#include <span>

#include "ovq/core/bfloat16.h"

namespace ovq::kernels {

// Element (row, column) is data[row * row_stride + column * column_stride].
struct MatrixView {
  const float* data = nullptr;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 1;
};

// Whether product() of these sizes, or outer_product(), is faster than a library.
bool product_is_faster(int64_t rows, int64_t depth, int64_t columns);
bool outer_product_is_faster(int64_t depth, int64_t rows, int64_t columns);

struct ProductInputs {
  MatrixView a, b;      // the columns of a are contiguous
  MatrixView add = {};  // as c, with contiguous columns; without data: nothing
};
// Overwrites c [rows, columns], rows `c_stride` apart. Each function here throws std::invalid_argument naming the
// argument that is wrong.
void product(const ProductInputs& inputs, float* c, int64_t c_stride);

// c [outer_product_sums(depth), rows, columns]: parts of the depth, whose sum is the product. They depend on the depth
// only, so that threads do not change the bits.
int64_t outer_product_sums(int64_t depth);
void outer_product(const MatrixView& a, const MatrixView& b, std::span<float> c);

// to [rows, columns] <- rows of bfloat16, `stride` apart
void widen(const Bfloat16* from, int64_t rows, int64_t columns, int64_t stride, std::span<float> to);

}  // namespace ovq::kernels
