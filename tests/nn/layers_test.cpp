#include "ovq/nn/cache.h"
#include "ovq/nn/parameters.h"
#include "ovq/nn/rms_norm.h"
#include "ovq/nn/short_convolution.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::nn::test {
namespace {

using namespace ops::test;

TEST(RmsNormLayer, StartsWithoutAWeight) {
  EXPECT_TRUE(close(RMSNorm(16)->forward(at::full({2, 16}, 3.0f)), at::ones({2, 16}), 1e-6));
}

TEST(Projection, RefusesAnotherDtype) {
  torch::manual_seed(5);
  Projection projection = make_projection(4, 3);
  const Tensor x = at::randn({2, 4});
  EXPECT_TRUE(close(projection(x), at::linear(x, projection->weight), 1e-6));
  EXPECT_THROW(projection(x.to(at::kDouble)), c10::TypeError);
}

// Keys of any strides, inside of tensors that belong to somebody else.
TEST(Cache, LeavesTheMemoryOfOthersAlone) {
  torch::manual_seed(7);
  for (const int64_t batch : {1, 2}) {
    const Tensor dense = at::randn({batch, 12, 2, 4}), by_channel = at::randn({batch, 2, 4, 12});
    const std::vector<std::pair<Tensor, Tensor>> prompts = {
        // whose memory, and the prompt in it
        {dense, dense.narrow(1, 0, 6)},
        {dense, dense.narrow(1, 0, 1).expand({batch, 6, 2, 4})},
        {dense, dense.narrow(1, 0, 6).narrow(2, 0, 1).expand({batch, 6, 2, 4})},
        {by_channel, by_channel.permute({0, 3, 1, 2}).narrow(1, 0, 6)}};
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (const bool gradients : {false, true}) {
        for (const int64_t window : {0, 4}) {
          SCOPED_TRACE(testing::Message() << "batch " << batch << ", prompt " << i << ", gradients " << gradients
                                          << ", window " << window);
          const auto& [memory, prompt] = prompts[i];
          const Tensor untouched = memory.clone();
          Tensor cache, read = prompt;
          {
            const torch::AutoGradMode mode(gradients);
            EXPECT_TRUE(close(extend_cache(cache, prompt, window), prompt, 0));
          }
          const torch::NoGradGuard no_grad;
          for (int64_t t = 0; t < 10; ++t) {
            const Tensor token = at::randn({batch, 1, 2, 4});
            read = at::cat({read, token}, 1);
            const Tensor seen = extend_cache(cache, token, window);
            ASSERT_EQ(seen.size(1), window == 0 ? read.size(1) : window);
            EXPECT_TRUE(close(seen, read.slice(1, read.size(1) - seen.size(1)), 0));
          }
          EXPECT_TRUE(close(memory, untouched, 0));
        }
      }
    }
  }
}

TEST(ShortConvolutionLayer, PackedSequencesAreAlone) {
  torch::manual_seed(5);
  ShortConvolution convolution(ShortConvolutionOptions{.channels = 5, .bias = true, .activation = Activation::silu});
  const Tensor x = at::randn({1, 20, 5});
  const Tensor y = convolution->forward(x, at::tensor({0, 1, 1, 9, 20}));
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 9}, {9, 20}}) {
    EXPECT_TRUE(close(y.slice(1, begin, end), convolution->forward(x.slice(1, begin, end)), 1e-6));
  }
  EXPECT_THROW(convolution->forward(x, at::tensor({0, 19})), std::invalid_argument);
}

TEST(ShortConvolutionLayer, PiecesCarryInputs) {
  torch::manual_seed(6);
  ShortConvolution convolution(ShortConvolutionOptions{.channels = 5});
  const Tensor x = at::randn({2, 12, 5}), y = convolution->forward(x);
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{12}, {1, 11}, {2, 1, 0, 9}, {5, 7}, {1, 1, 1, 1, 8}}) {
    std::vector<Tensor> parts;
    Tensor before;
    for (const Tensor& piece : x.split_with_sizes(pieces, 1)) parts.push_back(convolution->forward(piece, before));
    EXPECT_TRUE(close(at::cat(parts, 1), y, 0));
    EXPECT_TRUE(close(before, x.slice(1, 9), 0));
  }
}

}  // namespace
}  // namespace ovq::nn::test
