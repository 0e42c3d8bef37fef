// Properties of the function itself; tests/nn/vq_test.cpp tests how a codebook learns with it.
#include "ovq/ops/vector_quantize/torch.h"

#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

constexpr QuantizerGradient kGradients[] = {QuantizerGradient::straight_through, QuantizerGradient::diveq,
                                            QuantizerGradient::sf_diveq};

struct Codebook {
  Tensor z = unit({2, 30, 3}), codewords = unit({2, 7, 3});

  static Tensor unit(at::IntArrayRef shape) {
    const Tensor x = at::randn(shape, kDouble);
    return x / x.norm(2, -1, true);
  }
};

TEST(VectorQuantize, LayoutsAreInverse) {
  const Tensor x = at::randn({2, 5, 3, 4});
  EXPECT_TRUE(close(by_token(by_head(x), 2, 5), x, 0));
  EXPECT_TRUE(close(by_head(x)[1][7], x[1][2][1], 0));
}

TEST(VectorQuantize, WithoutNoiseIsTheNearest) {
  torch::manual_seed(1);
  const Codebook x;
  const Tensor nearest = at::cdist(x.z, x.codewords).argmin(-1);
  for (const QuantizerGradient gradient : {QuantizerGradient::straight_through, QuantizerGradient::diveq}) {
    const VectorQuantized actual =
        vector_quantize({.z = x.z, .codewords = x.codewords, .gradient = gradient, .noise = 0});
    EXPECT_TRUE(at::equal(actual.index, nearest));
    EXPECT_TRUE(close(actual.z_q, gather_rows(x.codewords, nearest), 1e-14));
    EXPECT_TRUE(close(actual.codeword, gather_rows(x.codewords, nearest), 0));
  }
  const VectorQuantized none = vector_quantize({.z = x.z.narrow(1, 0, 0), .codewords = x.codewords});
  EXPECT_EQ(none.index.sizes(), at::IntArrayRef({2, 0}));
}

TEST(VectorQuantize, ABonusWins) {
  torch::manual_seed(2);
  const Codebook x;
  const Tensor bonus = at::zeros({2, 7}, kDouble);
  bonus.select(1, 4).fill_(10);
  for (const QuantizerGradient gradient : kGradients) {
    const Tensor index =
        vector_quantize({.z = x.z, .codewords = x.codewords, .bonus = bonus, .gradient = gradient}).index;
    EXPECT_TRUE((index == 4).logical_or(index == 3).all().item<bool>());  // a segment has two ends
  }
}

// The direction is held fixed, so the gradient is that of z_q including the noise, but not of the index.
TEST(VectorQuantize, GradientsPassTheCodewords) {
  torch::manual_seed(3);
  for (const QuantizerGradient gradient : kGradients) {
    Codebook x;
    x.z.requires_grad_();
    x.codewords.requires_grad_();
    const Tensor z_q = vector_quantize({.z = x.z, .codewords = x.codewords, .gradient = gradient, .seed = 4}).z_q;
    const Tensor weights = at::randn_like(z_q);
    const auto d = torch::autograd::grad({(z_q * weights).sum()}, {x.z, x.codewords}, {}, false, false, true);
    if (gradient == QuantizerGradient::straight_through) {
      EXPECT_TRUE(close(d[0], weights, 0));
      EXPECT_FALSE(d[1].defined());
    } else {  // the codewords get the rest of the gradient
      EXPECT_TRUE(close(d[0].sum(1) + d[1].sum(1), weights.sum(1), 1e-12));
    }
  }
}

TEST(VectorQuantize, BadInputIsNamed) {
  const Codebook x;
  EXPECT_EQ(message_of([&] { vector_quantize({.z = x.z, .codewords = x.codewords[0]}); }),
            "[vector_quantize] codewords has shape [7, 3]; must be [2, codewords, 3]");
  EXPECT_EQ(
      message_of([&] {
        vector_quantize({.z = x.z, .codewords = x.codewords.narrow(1, 0, 1), .gradient = QuantizerGradient::sf_diveq});
      }),
      "[vector_quantize] codewords has 1 codewords; must have at least 2");
  EXPECT_EQ(message_of([&] { vector_quantize({.z = x.z, .codewords = x.codewords, .bonus = at::ones({2})}); }),
            "[vector_quantize] bonus has shape [2]; must be [2, 7]");
  EXPECT_EQ(message_of([&] { vector_quantize({.z = x.z, .codewords = x.codewords, .noise = -1}); }),
            "[vector_quantize] noise is -1; must be at least 0");
}

}  // namespace
}  // namespace ovq::ops::test
