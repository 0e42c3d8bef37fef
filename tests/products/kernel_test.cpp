// Products of many rows with a matrix, against the plain loops.
#include <gtest/gtest.h>

#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/products/products.h"
#include "ovq/ops/products/reference.h"
#include "tests/core/matrices.h"

namespace ovq::kernels::test {
namespace {

using ProductKernels = OnIsa;
OVQ_ON_EVERY_ISA(ProductKernels);

MatrixView matrix_view(const Tensor& x) {
  const View<float> view = x.view();
  return {.data = view.data, .rows = view.time, .columns = view.dim, .row_stride = view.time_stride};
}

MatrixView transposed(const MatrixView& x) {
  return {.data = x.data,
          .rows = x.columns,
          .columns = x.rows,
          .row_stride = x.column_stride,
          .column_stride = x.row_stride};
}

template <class Scalar>
reference::Matrix<Scalar> loaded(const MatrixView& x) {
  reference::Matrix<Scalar> m(x.rows, x.columns);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.columns; ++j) m[i][j] = x.data[i * x.row_stride + j * x.column_stride];
  }
  return m;
}

constexpr struct {
  int64_t rows, depth, columns;
} kSizes[] = {{0, 3, 4},     {1, 1, 1},     {5, 0, 7},    {6, 5, 7},     {7, 16, 17}, {64, 64, 64},
              {97, 33, 100}, {96, 129, 31}, {12, 80, 49}, {200, 1, 130}, {3, 300, 65}};

TEST_P(ProductKernels, Product) {
  for (const auto& [rows, depth, columns] : kSizes) {
    for (const Layout layout : kLayouts) {
      SCOPED_TRACE(testing::Message() << rows << " " << depth << " " << columns);
      Random random(static_cast<uint64_t>(rows * 1000 + depth));
      const Tensor a = random_tensor({1, rows, 1, depth}, layout, random);
      const Tensor b = random_tensor({1, depth, 1, columns}, layout, random);
      const Tensor w = random_tensor({1, columns, 1, depth}, layout, random);
      const Tensor add = random_tensor({1, rows, 1, columns}, layout, random);
      for (const MatrixView& matrix : {matrix_view(b), transposed(matrix_view(w))}) {
        for (const bool adds : {false, true}) {
          const Tensor c({1, rows, 1, columns}, layout);
          const ProductInputs in{.a = matrix_view(a), .b = matrix, .add = adds ? matrix_view(add) : MatrixView{}};
          product(in, c.view().data, c.view().time_stride);
          EXPECT_TRUE(c.fences_intact());
          const auto with = [&](auto scalar) {
            using Scalar = decltype(scalar);
            return reference::product(loaded<Scalar>(in.a), loaded<Scalar>(matrix),
                                      adds ? loaded<Scalar>(in.add) : reference::Matrix<Scalar>())
                .data;
          };
          const auto plain = with(float{});
          EXPECT_TRUE(calibrated({.actual = c.values(), .plain = plain, .truth = with(double{}), .magnitude = 1}));
        }
      }
    }
  }
}

TEST_P(ProductKernels, OuterProduct) {
  for (const auto& [columns, rows, depth] :
       {std::tuple{3, 4, 0}, {1, 1, 1}, {7, 5, 127}, {17, 16, 128}, {64, 64, 129}, {31, 100, 1023}, {49, 12, 2100}}) {
    SCOPED_TRACE(testing::Message() << rows << " " << columns << " " << depth);
    Random random(static_cast<uint64_t>(rows * 1000 + depth));
    const Tensor a = random_tensor({1, depth, 1, rows}, Layout::padded, random);
    const Tensor b = random_tensor({1, depth, 1, columns}, Layout::padded, random);
    const int64_t sums = outer_product_sums(depth);
    const auto run = [&, rows = rows, columns = columns] {
      const Tensor parts({1, sums, 1, rows * columns});
      outer_product(matrix_view(a), matrix_view(b), span(parts));
      EXPECT_TRUE(parts.fences_intact());
      return parts;
    };
    set_threads(1);
    const Tensor parts = run();
    set_threads(3);
    EXPECT_TRUE(same_bits(run().values(), parts.values()));
    set_threads(0);
    std::vector<float> c(static_cast<size_t>(rows * columns));
    for (int64_t part = 0; part < sums; ++part) {
      for (size_t i = 0; i < c.size(); ++i) c[i] += parts.row(0, part, 0)[i];
    }
    const auto plain = reference::outer_product(matrix<float>(a), matrix<float>(b)).data;
    const auto truth = reference::outer_product(matrix<double>(a), matrix<double>(b)).data;
    EXPECT_TRUE(calibrated({.actual = c, .plain = plain, .truth = truth, .magnitude = 1}));
  }
}

TEST_P(ProductKernels, WidensRows) {
  for (const int64_t columns : {1, 7, 8, 33, 130}) {
    Random random(static_cast<uint64_t>(columns));
    const int64_t rows = 20, stride = columns + 3;
    std::vector<Bfloat16> stored;
    for (int64_t i = 0; i < rows * stride; ++i) stored.push_back(to_bfloat16(random.normal()));
    const Tensor wide({1, rows, 1, columns});
    widen(stored.data(), rows, columns, stride, span(wide));
    EXPECT_TRUE(wide.fences_intact());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < columns; ++i) EXPECT_EQ(wide.row(0, row, 0)[i], to_float(stored[row * stride + i]));
    }
  }
}

TEST(ProductErrors, NameTheArgument) {
  std::vector<float> x(24);
  const MatrixView a{.data = x.data(), .rows = 4, .columns = 3, .row_stride = 3};
  const MatrixView b{.data = x.data(), .rows = 3, .columns = 5, .row_stride = 5};
  std::vector<float> c(20);
  const auto named = [](const std::string& name, const auto& call) {
    return throws_naming<std::invalid_argument>(name, call);
  };
  EXPECT_NO_THROW(product({.a = a, .b = b}, c.data(), 5));
  EXPECT_TRUE(named("a", [&] { product({.a = transposed(a), .b = b}, c.data(), 5); }));
  EXPECT_TRUE(named("b", [&] { product({.a = a, .b = transposed(b)}, c.data(), 5); }));
  EXPECT_TRUE(named("add", [&] { product({.a = a, .b = b, .add = a}, c.data(), 5); }));
  EXPECT_TRUE(named("c", [&] { product({.a = a, .b = b}, c.data(), 4); }));
  EXPECT_TRUE(named("c", [&] { outer_product(a, a, c); }));
  EXPECT_TRUE(named("rows", [&] { outer_product(a, b, c); }));
}

}  // namespace
}  // namespace ovq::kernels::test
