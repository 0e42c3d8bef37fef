// The short convolution as a function of tensors against the plain loops, and the consistency between calls.
#include "ovq/ops/short_convolution/torch.h"
#include "ovq/ops/short_convolution/reference.h"
#include "tests/ops/reference_tensors.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

namespace reference = kernels::reference;

using Tensors = std::vector<Tensor>;

// y, and gradients of sum(y d_y) by x, weight, bias and before
struct Convolved {
  Tensor y;
  Tensors gradients;
};

// x [B, T, C], weight [C, width], bias [C] or undefined, before [B, width - 1, C] or undefined: zeros
struct ConvolutionCase {
  Tensor x, weight, bias, before;
  Activation activation = Activation::none;

  Tensor d_y() const { return at::arange(x.numel()).mul(0.7).cos().view(x.sizes()); }

  Convolved by_op() const {
    Tensors leaves;
    const auto leaf = [&](const Tensor& tensor) {
      if (!tensor.defined()) return Tensor();
      return leaves.emplace_back(tensor.detach().requires_grad_(true));
    };
    const ShortConvolutionInputs in{
        .x = leaf(x), .weight = leaf(weight), .bias = leaf(bias), .before = leaf(before), .activation = activation};
    const Tensor y = short_convolution(in);
    const Tensors found = torch::autograd::grad({y}, leaves, {d_y()});
    Tensors all;
    size_t next = 0;
    for (const Tensor& tensor : {x, weight, bias, before}) all.push_back(tensor.defined() ? found[next++] : Tensor());
    return {y, all};
  }

  template <class Scalar>
  Convolved by_loops() const {
    const int64_t batch = x.size(0), channels = x.size(2), width = weight.size(1);
    const auto zeros = [](at::IntArrayRef shape) { return at::zeros(shape, kTypeOf<Scalar>); };
    const Tensor start = before.defined() ? before : at::zeros({batch, width - 1, channels});
    const Tensor offset = bias.defined() ? bias : at::zeros({channels});
    Convolved all{zeros(x.sizes()), {zeros(x.sizes()), zeros(weight.sizes()), zeros({channels}), zeros(start.sizes())}};
    for (int64_t b = 0; b < batch; ++b) {
      const reference::Convolution<Scalar> in{.x = matrix_of<Scalar>(x[b]),
                                              .taps = matrix_of<Scalar>(weight.t()),
                                              .bias = matrix_of<Scalar>(offset.unsqueeze(0)),
                                              .before = matrix_of<Scalar>(start[b]),
                                              .silu = activation == Activation::silu};
      all.y[b].copy_(tensor_of(reference::short_convolution_forward(in)));
      const auto d = reference::short_convolution_backward(in, matrix_of<Scalar>(d_y()[b]));
      all.gradients[0][b].copy_(tensor_of(d.d_x));
      all.gradients[1].add_(tensor_of(d.d_taps).t());
      all.gradients[2].add_(tensor_of(d.d_bias).squeeze(0));
      all.gradients[3][b].copy_(tensor_of(d.d_before));
    }
    return all;
  }

  void expect_as_good_as_loops() const {
    const Convolved actual = by_op(), plain = by_loops<float>(), truth = by_loops<double>();
    EXPECT_TRUE(calibrated(actual.y, plain.y, truth.y));
    for (size_t i = 0; i < truth.gradients.size(); ++i) {
      if (!actual.gradients[i].defined()) continue;
      const double terms = i == 1 || i == 2 ? std::sqrt(static_cast<double>(x.size(0) * x.size(1))) : 1;
      EXPECT_TRUE(calibrated(actual.gradients[i], plain.gradients[i], truth.gradients[i], 2e-6 * terms))
          << "gradient " << i;
    }
    const torch::NoGradGuard no_grad;
    const Tensor inferred =
        short_convolution({.x = x, .weight = weight, .bias = bias, .before = before, .activation = activation});
    EXPECT_TRUE(close(inferred, actual.y, 0));
  }
};

TEST(ShortConvolution, EqualsThePlainLoops) {
  torch::manual_seed(3);
  for (const Activation activation : {Activation::none, Activation::silu}) {
    for (const int64_t time : {1, 2, 3, 4, 65, 130}) {
      for (const int64_t width : {1, 2, 4, 5}) {
        for (const int64_t channels : {1, 63, 130}) {
          SCOPED_TRACE(testing::Message() << "time " << time << ", width " << width << ", channels " << channels);
          const Tensor x = at::randn({2, time, 2 * channels}).narrow(2, channels, channels);  // strided
          ConvolutionCase convolution{.x = x, .weight = at::randn({channels, width}), .activation = activation};
          convolution.expect_as_good_as_loops();
          convolution.bias = at::randn({channels});
          convolution.before = at::randn({2, width - 1, channels});
          convolution.expect_as_good_as_loops();
        }
      }
    }
  }
}

TEST(ShortConvolution, PackedSequencesAreAlone) {
  torch::manual_seed(4);
  const Tensor x = at::randn({1, 90, 5}).requires_grad_(true), weight = at::randn({5, 4}).requires_grad_(true),
               bias = at::randn({5}).requires_grad_(true), cu_seqlens = at::tensor({0, 2, 2, 3, 80, 90});
  const auto run = [&](const Tensor& part, const c10::optional<Tensor>& packed) {
    return short_convolution(
        {.x = part, .weight = weight, .bias = bias, .cu_seqlens = packed, .activation = Activation::silu});
  };
  Tensors parts;
  for (const auto& [begin, end] : {std::pair{0, 2}, {2, 3}, {3, 80}, {80, 90}}) {
    parts.push_back(run(x.slice(1, begin, end), c10::nullopt));
  }
  const Tensor together = run(x, cu_seqlens), alone = at::cat(parts, 1);
  EXPECT_TRUE(close(together, alone, 0));
  const auto gradients = [&](const Tensor& y) { return torch::autograd::grad({weighted_sum({y})}, {x, weight, bias}); };
  const Tensors actual = gradients(together), expected = gradients(alone);
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(close(actual[i], expected[i], 1e-6)) << i;
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(close(run(x, cu_seqlens), alone, 0));
}

// In pieces of any length behind the inputs that inputs_after keeps, down to one token.
TEST(ShortConvolution, PiecesCarryTheInputs) {
  torch::manual_seed(5);
  for (const int64_t width : {1, 2, 4}) {
    const Tensor x = at::randn({2, 40, 6}), weight = at::randn({6, width});
    const Tensor whole = short_convolution({.x = x, .weight = weight});
    for (const int64_t length : {1, 2, 3, 7}) {
      Tensor before;
      Tensors outputs;
      for (int64_t t = 0; t < 40; t += length) {
        const Tensor part = x.slice(1, t, std::min<int64_t>(40, t + length));
        outputs.push_back(short_convolution({.x = part, .weight = weight, .before = before}));
        before = inputs_after(part, before, width);
      }
      EXPECT_TRUE(close(at::cat(outputs, 1), whole, 0)) << "pieces of " << length;
      EXPECT_TRUE(close(before, x.slice(1, 41 - width), 0)) << "pieces of " << length;
    }
  }
}

// Neither a view of x, which would keep all of it alive, nor of what was before.
TEST(ShortConvolution, InputsAfterAreACopy) {
  const Tensor x = at::randn({1, 5, 2}), before = at::randn({1, 3, 2});
  for (const int64_t time : {0, 1, 3, 5}) {
    const Tensor after = inputs_after(x.slice(1, 0, time), before, 4);
    EXPECT_TRUE(close(after, at::cat({before, x.slice(1, 0, time)}, 1).slice(1, time), 0));
    EXPECT_TRUE(after.is_contiguous());
    EXPECT_EQ(after.storage().nbytes(), 3 * 2 * sizeof(float));
    EXPECT_NE(after.data_ptr(), before.data_ptr());
    EXPECT_NE(after.data_ptr(), x.data_ptr());
  }
}

TEST(ShortConvolution, NoTokens) {
  const Tensor weight = at::randn({3, 4});
  EXPECT_EQ(short_convolution({.x = at::randn({2, 0, 3}), .weight = weight}).sizes(), at::IntArrayRef({2, 0, 3}));
  EXPECT_EQ(short_convolution({.x = at::randn({0, 5, 3}), .weight = weight}).sizes(), at::IntArrayRef({0, 5, 3}));
}

TEST(ShortConvolution, HalvesAreConverted) {
  torch::manual_seed(6);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Tensor x = at::randn({2, 9, 5}).to(type).requires_grad_(true), weight = at::randn({5, 4}).to(type);
    const Tensor wide = x.detach().to(at::kFloat).requires_grad_(true);
    const Tensor y = short_convolution({.x = x, .weight = weight, .activation = Activation::silu});
    const Tensor expected =
        short_convolution({.x = wide, .weight = weight.to(at::kFloat), .activation = Activation::silu});
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(close(y, expected.to(type), 0));
    const Tensor d_y = at::randn({2, 9, 5}).to(type);
    EXPECT_TRUE(close(torch::autograd::grad({y}, {x}, {d_y})[0],
                      torch::autograd::grad({expected}, {wide}, {d_y.to(at::kFloat)})[0].to(type), 0));
  }
}

TEST(ShortConvolution, BadInputIsNamed) {
  const Tensor x = at::randn({1, 4, 3}), weight = at::randn({3, 4});
  const auto message = [](const ShortConvolutionInputs& in) { return message_of([&] { short_convolution(in); }); };
  const std::string op = "[short_convolution] ";
  EXPECT_EQ(message({.x = x[0], .weight = weight}).find(op + "x has 2 dimensions"), 0u);
  EXPECT_EQ(message({.x = x, .weight = weight.t()}).find(op + "weight has shape [4, 3]"), 0u);
  EXPECT_EQ(message({.x = x, .weight = weight, .bias = at::ones({4})}).find(op + "bias must have 3"), 0u);
  EXPECT_EQ(message({.x = x, .weight = weight, .before = at::ones({1, 4, 3})}).find(op + "before has shape"), 0u);
  const Tensor short_ones = at::tensor({0, 3});
  EXPECT_EQ(message({.x = x, .weight = weight, .cu_seqlens = short_ones}).find(op + "cu_seqlens ends with 3"), 0u);
  EXPECT_EQ(message({.x = x, .weight = weight, .before = at::ones({1, 3, 3}), .cu_seqlens = at::tensor({0, 4})})
                .find(op + "before is given with cu_seqlens"),
            0u);
  EXPECT_EQ(message({.x = x.to(at::kDouble), .weight = weight}).find(op + "x is Double on cpu"), 0u);
}

}  // namespace
}  // namespace ovq::ops::test
