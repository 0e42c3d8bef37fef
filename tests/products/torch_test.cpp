#include "ovq/ops/products/torch.h"

#include "tests/ops/fused_checks.h"

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
          const bool kernel = kernels::detail::row_kernels().fast_products;
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

TEST(Products, LinearIsAsGoodAsComposed) {
  torch::manual_seed(2);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 40, 24}, {70, 9}, {3, 5}}) {
    expect_as_good_as_composed([](const std::vector<Tensor>& in) { return std::vector{ops::linear(in[0], in[1])}; },
                               {at::randn(shape, kDouble), at::randn({33, shape.back()}, kDouble)});
  }
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
