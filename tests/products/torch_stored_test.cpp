// Products, projections and MLPs without gradients: as accurate as their formulas, with few rows and many, with weights
// in float32 and bfloat16, on every instruction set. With gradients, bfloat16 is rejected.
#include "ovq/ops/products/torch_stored.h"

#include <ATen/Parallel.h>

#include "ovq/core/isa.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/gated_mlp/torch.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/projections/torch.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

// Numbers that are exact in bfloat16, so that both storage types hold the same weights.
Tensor exact(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16).to(at::kFloat); }

using Call = std::function<Tensor(const Tensor& x, const std::vector<Tensor>& weights)>;

// Compares `call` with stored weights, in float32 and bfloat16, with its formula in double and in float.
void expect_as_good(const Call& call, const Call& formula, const Tensor& x, const std::vector<Tensor>& weights) {
  const torch::NoGradGuard no_grad;
  const auto converted = [&](at::ScalarType matrices, at::ScalarType others) {
    std::vector<Tensor> list;
    for (const Tensor& weight : weights) list.push_back(weight.to(weight.dim() == 2 ? matrices : others));
    return list;
  };
  const Tensor truth = formula(x.to(at::kDouble), converted(at::kDouble, at::kDouble)), plain = formula(x, weights);
  for (const std::string& isa : kernels::available_isas()) {
    kernels::select_isa(isa);
    EXPECT_TRUE(calibrated(call(x, weights), plain, truth)) << isa << " float32 " << x.sizes();
    EXPECT_TRUE(calibrated(call(x, converted(at::kBFloat16, at::kFloat)), plain, truth))
        << isa << " bfloat16 " << x.sizes();
  }
  kernels::select_isa("");
}

Tensor linear_formula(const Tensor& from, const std::vector<Tensor>& w) {
  return at::linear(from, w[0], w.size() > 1 ? w[1] : Tensor());
}

Tensor unit_heads(const Tensor& y, int64_t dim, double eps) {
  const Tensor heads = y.unflatten(-1, {y.size(-1) / dim, dim});
  return (heads / (heads.square().sum(-1, true) + eps).sqrt()).flatten(-2);
}

const std::vector<std::vector<int64_t>> kRows = {{1, 1}, {1, 8}, {3, 3}, {2, 40}, {1, 130}};

TEST(StoredWeights, Linear) {
  torch::manual_seed(1);
  for (const auto& rows : kRows) {
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 5}, {64, 33}, {130, 257}}) {
      const Tensor x = at::randn({rows[0], rows[1], in});
      const auto plain = [](const Tensor& from, const std::vector<Tensor>& w) { return ops::linear(from, w[0]); };
      expect_as_good(plain, linear_formula, x, {exact({out, in})});
      const auto biased = [](const Tensor& from, const std::vector<Tensor>& w) {
        return ops::linear(from, w[0], w[1]);
      };
      expect_as_good(biased, linear_formula, x, {exact({out, in}), at::randn({out})});
    }
  }
}

TEST(StoredWeights, LargerThanTheBlockThatIsWidened) {
  torch::manual_seed(2);
  const auto call = [](const Tensor& from, const std::vector<Tensor>& w) { return ops::linear(from, w[0]); };
  expect_as_good(call, linear_formula, at::randn({20, 600}), {exact({2000, 600})});
}

TEST(StoredWeights, GatedMlp) {
  torch::manual_seed(3);
  for (const auto& rows : kRows) {
    for (const bool residual : {false, true}) {
      const auto call = [residual](const Tensor& from, const std::vector<Tensor>& w) {
        return gated_mlp({.x = from, .norm = w[0], .gate = w[1], .up = w[2], .down = w[3], .residual = residual});
      };
      const auto formula = [residual](const Tensor& from, const std::vector<Tensor>& w) {
        const Tensor n = from / (from.square().mean(-1, true) + 1e-6).sqrt() * w[0];
        const Tensor y = at::linear(at::silu(at::linear(n, w[1])) * at::linear(n, w[2]), w[3]);
        return residual ? from + y : y;
      };
      expect_as_good(call, formula, at::randn({rows[0], rows[1], 48}),
                     {at::randn({48}), exact({70, 48}), exact({70, 48}), exact({48, 70})});
    }
  }
}

TEST(StoredWeights, Projections) {
  torch::manual_seed(4);
  for (const auto& rows : kRows) {
    const auto call = [](const Tensor& from, const std::vector<Tensor>& w) {
      const std::vector<Tensor> parts =
          projections({.x = from,
                       .weights = {w[0], w[1], w[2]},
                       .biases = {Tensor(), w[3], Tensor()},
                       .parts = {{.channels = 24, .head_dim = 8, .unit_eps = 1e-12},
                                 {.channels = 16, .head_dim = 8, .silu = true, .unit_eps = 1e-6},
                                 {.channels = 5}}});
      return at::cat(parts, -1);
    };
    const auto formula = [](const Tensor& from, const std::vector<Tensor>& w) {
      return at::cat({unit_heads(at::linear(from, w[0]), 8, 1e-12),
                      unit_heads(at::silu(at::linear(from, w[1], w[3])), 8, 1e-6), at::linear(from, w[2])},
                     -1);
    };
    expect_as_good(call, formula, at::randn({rows[0], rows[1], 20}),
                   {exact({24, 20}), exact({16, 20}), exact({5, 20}), at::randn({16})});
  }
}

// Expanded and unfolded weights, whose storage ends before that of contiguous rows would.
TEST(StoredWeights, RowsThatOverlap) {
  torch::manual_seed(6);
  const torch::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor expanded = exact({1, 24}).to(type).expand({10, 24});
    const Tensor unfolded = exact({33}).to(type).unfold(0, 24, 1);
    const Tensor column = exact({1, 1}).to(type).expand({10, 1});
    for (const Tensor& weight : {expanded, unfolded, column}) {
      const Tensor dense = weight.contiguous(), bias = at::randn({1}).expand({10});
      const Tensor down = exact({1, 10}).to(type).expand({weight.size(1), 10});
      for (const int64_t rows : {1, 3, 40}) {
        SCOPED_TRACE(testing::Message() << type << ", strides " << weight.strides() << ", rows " << rows);
        const Tensor x = at::randn({1, rows, weight.size(1)});
        EXPECT_TRUE(close(ops::linear(x, weight), ops::linear(x, dense), 1e-5));
        EXPECT_TRUE(close(ops::linear(x, weight, bias), ops::linear(x, dense, bias.contiguous()), 1e-5));
        const std::vector<Tensor> parts =
            projections({.x = x, .weights = {weight, dense}, .parts = {{.channels = 10}, {.channels = 10}}});
        EXPECT_TRUE(close(parts[0], parts[1], 1e-5));
        EXPECT_TRUE(close(gated_mlp({.x = x, .gate = weight, .up = weight, .down = down}),
                          gated_mlp({.x = x, .gate = dense, .up = dense, .down = down.contiguous()}), 1e-5));
      }
    }
  }
}

TEST(StoredWeights, SameBitsForAnyNumberOfThreads) {
  const torch::NoGradGuard no_grad;
  const int threads = at::get_num_threads();
  const Tensor x = at::randn({3, 300}), w = exact({400, 300}).to(at::kBFloat16);
  at::set_num_threads(1);
  const Tensor one = ops::linear(x, w);
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(ops::linear(x, w), one));
  at::set_num_threads(threads);
}

TEST(StoredWeights, AreNotTrained) {
  const Tensor x = at::randn({2, 8}).requires_grad_(), w = at::randn({4, 8}).to(at::kBFloat16);
  const std::string reason =
      "the weights are bfloat16, which is for inference; must be float32 for gradients, or without them "
      "(torch.no_grad)";
  EXPECT_EQ(message_of([&] { ops::linear(x, w); }), "[linear] " + reason);
  EXPECT_EQ(message_of([&] { ops::linear(x.detach(), w.detach().requires_grad_()); }), "[linear] " + reason);
  const Tensor square = at::randn({8, 8}).to(at::kBFloat16);
  EXPECT_EQ(message_of([&] { gated_mlp({.x = x, .gate = square, .up = square, .down = square}); }),
            "[gated_mlp] " + reason);
  EXPECT_EQ(message_of([&] {
              projections({.x = x.view({1, 2, 8}), .weights = {w}, .parts = {{.channels = 4}}});
            }),
            "[projections] " + reason);
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(ops::linear(x, w).sizes(), at::IntArrayRef({2, 4}));
}

TEST(StoredWeights, AttentionReadsACacheInBfloat16) {
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  for (const int64_t queries : {1, 3, 7, 40}) {
    for (const int64_t window : {0, 20}) {
      const Tensor q = at::randn({2, queries, 4, 16}), beta = at::rand({4}) * 4;
      const Tensor k = exact({2, 90, 2, 16}), v = exact({2, 90, 2, 24});
      const Tensor wide = attention(q, k, v, beta, window, 90 - queries);
      const auto narrow = [&] {
        return attention(q, k.to(at::kBFloat16), v.to(at::kBFloat16), beta, window, 90 - queries);
      };
      EXPECT_TRUE(close(narrow(), wide, 1e-6)) << queries << " " << window;
    }
  }
}

}  // namespace
}  // namespace ovq::ops::test
