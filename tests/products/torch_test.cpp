#include "ovq/ops/products/torch.h"

#include "tests/ops/formula_checks.h"

namespace ovq::ops::test {
namespace {

TEST(Products, AreAsGoodAsTheLibrary) {
  torch::manual_seed(1);
  const int threads = at::get_num_threads();
  for (const std::string& isa : kernels::available_isas()) {
    kernels::select_isa(isa);
    for (const int64_t rows : {1, 64, 97, 2100}) {
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {5, 7}, {16, 17}, {64, 64}, {33, 100}, {129, 31}, {80, 49}}) {
        const Tensor x = at::randn({rows, in}), w = at::randn({out, in}), y = at::randn({rows, out});
        const Tensor add = at::randn({rows, out}), wide = at::randn({rows, 2 * in}).narrow(1, in, in);
        const Tensor transposed = at::randn({in, out}).t();
        const auto expect = [&](const Tensor& a, const Tensor& b, const Tensor& plus,
                                const std::function<Tensor()>& own) {
          const auto sum = [&](const Tensor& c, const Tensor& p) { return p.defined() ? c + p : c; };
          const Tensor truth = sum(at::mm(a.to(at::kDouble), b.to(at::kDouble)), plus);
          at::set_num_threads(1);
          const Tensor one = own();
          at::set_num_threads(3);
          EXPECT_TRUE(calibrated(one, sum(at::mm(a, b), plus), truth)) << isa << " " << rows << " " << in << " " << out;
          const bool kernel = kernels::product_is_faster(64, 1, 1);
          EXPECT_TRUE(!kernel || at::equal(one, own())) << isa << " " << rows << " " << in << " " << out;
        };
        expect(x, w.t(), {}, [&] { return rows_times_transposed(x, w); });
        expect(x, w.t(), add, [&] { return rows_times_transposed(x, w, add); });
        expect(wide, w.t(), {}, [&] { return rows_times_transposed(wide, w); });
        expect(x, transposed.t(), {}, [&] { return rows_times_transposed(x, transposed); });
        expect(y, w, {}, [&] { return rows_times(y, w); });
        expect(y.t(), x, {}, [&] { return columns_times_rows(y, x); });
        expect(y.t(), wide, {}, [&] { return columns_times_rows(y, wide); });
      }
    }
  }
  kernels::select_isa("");
  at::set_num_threads(threads);
}

const OpCall kLinearCall = [](const std::vector<Tensor>& in) {
  return std::vector{ops::linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
};
const OpCall kLinearFormula = [](const std::vector<Tensor>& in) {
  return std::vector{at::linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
};

TEST(Linear, IsAsGoodAsTheFormula) {
  torch::manual_seed(2);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 40, 24}, {70, 9}, {3, 5}, {7}}) {
    const Tensor x = at::randn(shape, kDouble), w = at::randn({33, shape.back()}, kDouble);
    expect_as_good_as_formula(kLinearCall, kLinearFormula, {x, w});
    expect_as_good_as_formula(kLinearCall, kLinearFormula, {x, w, at::randn({33}, kDouble)});
  }
}

TEST(Linear, ConvertsHalves) {
  torch::manual_seed(3);
  const std::vector<Tensor> in = {at::randn({2, 9, 5}), at::randn({4, 5}), at::randn({4})};
  expect_conversions("linear", kLinearCall, in);
  expect_no_second_derivative("linear", kLinearCall, in);
}

TEST(Linear, NoRows) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 0, 5}, {0, 3, 5}}) {
    const auto results =
        outputs_and_gradients(kLinearCall, {at::zeros(shape), at::ones({4, 5}), at::ones({4})}, at::kFloat);
    EXPECT_EQ(results[0].sizes(), at::IntArrayRef({shape[0], shape[1], 4}));
    EXPECT_EQ(results[1].sizes(), at::IntArrayRef(shape));
    EXPECT_TRUE(close(results[2], at::zeros({4, 5}), 0));
    EXPECT_TRUE(close(results[3], at::zeros({4}), 0));
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(ops::linear(at::zeros(shape), at::ones({4, 5})).sizes(), at::IntArrayRef({shape[0], shape[1], 4}));
  }
}

TEST(Linear, BadShapes) {
  EXPECT_EQ(message_of([] {
              ops::linear(at::ones({2, 3}), at::ones({4, 5}));
            }),
            "[linear] x has shape [2, 3]; must have w's 5 columns");
  EXPECT_EQ(message_of([] {
              ops::linear(at::ones({2, 5}), at::ones({4, 5}), at::ones({5}));
            }),
            "[linear] bias must have 4 elements");
}

TEST(Products, NotANumberStays) {
  const Tensor x = at::ones({100, 8}), w = at::ones({4, 8});
  x[7][3] = NAN;
  const Tensor y = ops::linear(x, w);
  EXPECT_TRUE(y[7].isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 4);
}

}  // namespace
}  // namespace ovq::ops::test
