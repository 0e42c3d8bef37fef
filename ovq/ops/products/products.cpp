#include "ovq/ops/products/products.h"

#include <algorithm>

#include "ovq/core/buffer.h"
#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels {
namespace {

constexpr const char* kProduct = "product";
constexpr int64_t kProductRows = 96;            // that a thread multiplies with a panel at a time
constexpr int64_t kFewestRows = 64;             // below, packing costs more than it saves
constexpr int64_t kDeepest = 1024;              // a panel stays in the cache
constexpr int64_t kLargest = int64_t{1} << 19;  // elements of the matrix
constexpr int64_t kRowsPerSum = 1024;           // of an outer product that are summed on their own, by one thread
constexpr int64_t kMostSums = 8;
constexpr int64_t kNarrow = 64;  // rows or columns of an outer product, up to which the kernel is faster

void check_columns(const char* name, const MatrixView& x) {
  check(x.data != nullptr || x.rows * x.columns == 0, kProduct, name, " is missing");
  check(x.column_stride == 1 || x.columns <= 1, kProduct, name, " has columns ", x.column_stride,
        " apart; must be contiguous");
}

}  // namespace

bool product_is_faster(int64_t rows, int64_t depth, int64_t columns) {
  return rows >= kFewestRows && depth <= kDeepest && depth * columns <= kLargest && detail::row_kernels().fast_products;
}

bool outer_product_is_faster(int64_t depth, int64_t rows, int64_t columns) {
  const auto [least, most] = std::minmax(rows, columns);
  return least <= kNarrow && product_is_faster(depth, least, most);
}

void product(const ProductInputs& in, float* c, int64_t c_stride) {
  const auto& [a, b, add] = in;
  check_columns("a", a);
  check(b.data != nullptr || b.rows * b.columns == 0, kProduct, "b is missing");
  check(b.rows == a.columns, kProduct, "b has ", b.rows, " rows; must be a's ", a.columns, " columns");
  if (add.data != nullptr) {
    check_columns("add", add);
    check(add.rows == a.rows && add.columns == b.columns, kProduct, "add is [", add.rows, ", ", add.columns,
          "]; must be [", a.rows, ", ", b.columns, "]");
  }
  if (a.rows * b.columns == 0) return;
  check(c != nullptr && c_stride >= b.columns, kProduct, "c has rows ", c_stride, " apart; must be at least ",
        b.columns);
  const int64_t padded = (b.columns + detail::kWidestPanel - 1) / detail::kWidestPanel * detail::kWidestPanel;
  const Buffer<float> panels(b.rows * padded, Lifetime::scratch);
  const auto& kernels = detail::row_kernels();
  kernels.pack({.b = b.data,
                .depth_stride = b.row_stride,
                .column_stride = b.column_stride,
                .depth = b.rows,
                .columns = b.columns},
               panels.data());
  parallel_blocks(a.rows, kProductRows, b.rows * b.columns, [&](int64_t begin, int64_t end) {
    kernels.product({.a = a.data + begin * a.row_stride,
                     .a_stride = a.row_stride,
                     .panels = panels.data(),
                     .add = add.data == nullptr ? nullptr : add.data + begin * add.row_stride,
                     .add_stride = add.row_stride,
                     .rows = end - begin,
                     .columns = b.columns,
                     .depth = b.rows},
                    c + begin * c_stride, c_stride);
  });
}

int64_t outer_product_sums(int64_t depth) { return std::clamp<int64_t>(depth / kRowsPerSum, 1, kMostSums); }

void outer_product(const MatrixView& a, const MatrixView& b, std::span<float> c) {
  check_columns("a", a);
  check_columns("b", b);
  check(a.rows == b.rows, kProduct, "a and b have ", a.rows, " and ", b.rows, " rows; must be as many");
  const int64_t depth = a.rows, rows = a.columns, columns = b.columns;
  const int64_t sums = outer_product_sums(depth), step = (depth + sums - 1) / sums;
  check_size(kProduct, "c", c, sums * rows * columns);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(sums, 1, step * rows * columns, [&](int64_t part, int64_t) {
    const int64_t first = std::min(depth, part * step), count = std::min(step, depth - first);
    if (count == 0) {
      std::fill_n(c.data() + part * rows * columns, rows * columns, 0.0f);
      return;
    }
    alignas(64) float scratch[detail::kOuterDepth * detail::kWidestPanel];
    kernels.outer_product({.a = a.data + first * a.row_stride,
                           .a_stride = a.row_stride,
                           .b = b.data + first * b.row_stride,
                           .b_stride = b.row_stride,
                           .rows = rows,
                           .columns = columns,
                           .depth = count},
                          scratch, c.data() + part * rows * columns, columns);
  });
}

void widen(const Bfloat16* from, int64_t rows, int64_t columns, int64_t stride, std::span<float> to) {
  check_size(kProduct, "to", to, rows * columns);
  check(from != nullptr || rows * columns == 0, kProduct, "from is missing");
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, 16, columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels.widen(from + row * stride, columns, to.data() + row * columns);
    }
  });
}

}  // namespace ovq::kernels
