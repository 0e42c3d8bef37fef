// A few rows times stored matrices, against the plain loops.
#include "ovq/ops/products/matvec.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/products/reference.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"

namespace ovq::kernels::test {
namespace {

using reference::Matrix;

struct MatvecCase {
  int64_t rows = 1, depth = 64;
  std::vector<int64_t> outputs = {64};
  bool narrow = false, add = false, gated = false;
  Layout layout = Layout::dense;
};

std::ostream& operator<<(std::ostream& out, const MatvecCase& c) {
  out << "rows " << c.rows << ", depth " << c.depth << ", narrow " << c.narrow << ", add " << c.add << ", gated "
      << c.gated << ", outputs";
  for (const int64_t outputs : c.outputs) out << " " << outputs;
  return out;
}

// Weights are exact in bfloat16, so that both storage types hold the same values.
struct MatvecProblem {
  explicit MatvecProblem(const MatvecCase& c) : c(c) {
    Random random(static_cast<uint64_t>(c.rows * 1000 + c.depth));
    int64_t outputs = 0;
    for (const int64_t count : c.outputs) {
      outputs += count;
      Tensor& weight = weights.emplace_back(random_tensor({1, count, 1, c.depth}, c.layout, random));
      weight.each_row([&](float* row) {
        for (int64_t i = 0; i < c.depth; ++i) row[i] = to_float(to_bfloat16(row[i]));
      });
      std::vector<Bfloat16>& stored = narrow.emplace_back();
      weight.each_row([&](const float* row) {
        for (int64_t i = 0; i < c.depth; ++i) stored.push_back(to_bfloat16(row[i]));
      });
    }
    columns = c.gated ? outputs / 2 : outputs;
    x = random_tensor({1, c.rows, 1, c.depth}, c.layout, random);
    add = random_tensor({1, c.rows, 1, outputs}, c.layout, random);
  }

  std::vector<StoredMatrix> stored() const {
    std::vector<StoredMatrix> list;
    for (size_t i = 0; i < weights.size(); ++i) {
      const View<float> view = weights[i].view();
      if (c.narrow)
        list.push_back({.narrow = narrow[i].data(), .outputs = view.time, .stride = c.depth});
      else
        list.push_back({.wide = view.data, .outputs = view.time, .stride = view.time_stride});
    }
    return list;
  }

  std::vector<float> run() const {
    const Tensor y({1, c.rows, 1, columns}, c.layout);
    const std::vector<StoredMatrix> list = stored();
    MatvecInputs in{.x = x.view().data,
                    .x_stride = x.view().time_stride,
                    .rows = c.rows,
                    .depth = c.depth,
                    .weights = list,
                    .gated = c.gated};
    if (c.add) {
      in.add = add.view().data;
      in.add_stride = add.view().time_stride;
    }
    matvec(in, y.view().data, y.view().time_stride);
    EXPECT_TRUE(y.fences_intact());
    return y.values();
  }

  template <class Scalar>
  std::vector<Scalar> expected() const {
    const auto loaded = [](const Tensor& from) {
      return reference::load<Scalar>(View<const float>(from.view()), 0, 0, 0, from.view().time);
    };
    std::vector<Matrix<Scalar>> matrices;
    for (const Tensor& weight : weights) matrices.push_back(loaded(weight));
    return reference::matvec(loaded(x), matrices, c.add ? loaded(add) : Matrix<Scalar>(), c.gated).data;
  }

  MatvecCase c;
  int64_t columns = 0;
  Tensor x, add;
  std::vector<Tensor> weights;
  std::vector<std::vector<Bfloat16>> narrow;
};

void expect_matches(const MatvecCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const MatvecProblem problem(c);
  const std::vector<float> actual = problem.run(), plain = problem.expected<float>();
  EXPECT_TRUE(calibrated({.actual = actual, .plain = plain, .truth = problem.expected<double>(), .magnitude = 1}));
}

using Matvec = OnIsa;
OVQ_ON_EVERY_ISA(Matvec);

TEST_P(Matvec, AnySize) {
  constexpr int64_t kDepths[] = {1, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 200, 1024};
  constexpr int64_t kOutputs[] = {1, 2, 15, 16, 33, 130};
  int64_t i = 0;
  for (const int64_t depth : kDepths) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 11}) {
      for (const bool narrow : {false, true}) {
        ++i;
        expect_matches({.rows = rows,
                        .depth = depth,
                        .outputs = {kOutputs[i % 6], kOutputs[i % 5]},
                        .narrow = narrow,
                        .add = i % 3 == 0,
                        .layout = kLayouts[i % 3]});
        expect_matches({.rows = rows,
                        .depth = depth,
                        .outputs = {kOutputs[i % 6], kOutputs[i % 6]},
                        .narrow = narrow,
                        .gated = true,
                        .layout = kLayouts[i % 3]});
      }
    }
  }
}

TEST_P(Matvec, SameBitsForAnyNumberOfThreadsAndAnyRowsBeside) {
  for (const bool narrow : {false, true}) {
    for (const bool gated : {false, true}) {
      const MatvecProblem problem({.rows = 7, .depth = 515, .outputs = {600, 600}, .narrow = narrow, .gated = gated});
      set_threads(1);
      const std::vector<float> expected = problem.run();
      for (const int threads : {2, 3, 7}) {
        set_threads(threads);
        EXPECT_TRUE(same_bits(problem.run(), expected));
      }
      set_threads(0);
      for (int64_t row = 0; row < 7; ++row) {
        MatvecProblem one = problem;
        one.c.rows = 1;
        one.x = Tensor({1, 1, 1, 515});
        std::copy_n(problem.x.row(0, row, 0), 515, one.x.row(0, 0, 0));
        const std::span<const float> all = expected;
        const std::vector<float> alone = one.run();
        EXPECT_TRUE(same_bits(std::span<const float>(alone), all.subspan(row * problem.columns, problem.columns)));
      }
    }
  }
}

TEST_P(Matvec, NotANumberStays) {
  for (const bool narrow : {false, true}) {
    MatvecProblem problem({.rows = 2, .depth = 40, .outputs = {5}, .narrow = narrow});
    problem.x.row(0, 1, 0)[39] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = problem.run();
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i >= 5);
  }
}

TEST_P(Matvec, AddsInPlace) {
  const MatvecProblem problem({.rows = 3, .depth = 40, .outputs = {33}, .add = true});
  const std::vector<float> expected = problem.run();
  const std::vector<StoredMatrix> list = problem.stored();
  std::vector<float> y = problem.add.values();
  matvec({.x = problem.x.view().data,
          .x_stride = 40,
          .rows = 3,
          .depth = 40,
          .weights = list,
          .add = y.data(),
          .add_stride = 33},
         y.data(), 33);
  EXPECT_TRUE(same_bits(y, expected));
}

TEST(MatvecErrors, NameTheArgument) {
  const std::vector<float> x(8), w(16);
  std::vector<float> y(2);
  const StoredMatrix good{.wide = w.data(), .outputs = 2, .stride = 8};
  const auto call = [&](const StoredMatrix& weight, MatvecInputs in, int64_t y_stride) {
    in.weights = {&weight, 1};
    return [&, in, weight, y_stride]() mutable {
      in.weights = {&weight, 1};
      matvec(in, y.data(), y_stride);
    };
  };
  const MatvecInputs in{.x = x.data(), .x_stride = 8, .rows = 1, .depth = 8};
  EXPECT_NO_THROW(call(good, in, 2)());
  EXPECT_TRUE(throws_naming<std::invalid_argument>("weight", call({.outputs = 2, .stride = 8}, in, 2)));
  EXPECT_TRUE(
      throws_naming<std::invalid_argument>("apart", call({.wide = w.data(), .outputs = 2, .stride = 7}, in, 2)));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("y", call(good, in, 1)));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("x", call(good, {.rows = 1, .depth = 8}, 2)));
  MatvecInputs gated = in;
  gated.gated = true;
  EXPECT_TRUE(throws_naming<std::invalid_argument>("gated", call(good, gated, 2)));
}

}  // namespace
}  // namespace ovq::kernels::test
