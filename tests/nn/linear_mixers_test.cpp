#include "ovq/nn/gated_delta_net.h"
#include "ovq/nn/linear_attention_mixer.h"
#include "ovq/nn/mamba2.h"
#include "ovq/nn/mesa_net.h"
#include "tests/nn/mixer_checks.h"

namespace ovq::nn::test {
namespace {

int64_t parameters(const Mixer& mixer) {
  int64_t count = 0;
  for (const Tensor& x : mixer.parameters()) count += x.numel();
  return count;
}

// 8 layers of width 768 with a gated MLP of 2304, a vocabulary of 10,000, norms before both and before the output.
TEST(LinearMixerSizes, PaperModelsHave77MillionParameters) {
  const int64_t others = 2 * 10'000 * 768 + 8 * (3 * 768 * 2304 + 2 * 768) + 768;
  const auto million = [&](const Mixer& mixer) { return (others + 8 * parameters(mixer)) / 1e6; };
  EXPECT_NEAR(million(GatedDeltaNet({.width = 768, .heads = 3})), 77, 0.02 * 77);
  EXPECT_NEAR(million(Mamba2({.width = 768, .groups = 6})), 77, 0.02 * 77);
  EXPECT_NEAR(million(MesaNet({.width = 768, .heads = 6})), 77, 0.02 * 77);
  EXPECT_NEAR(million(LinearAttentionMixer({.width = 768, .heads = 6})), 77, 0.02 * 77);
}

TEST(LinearMixerOptions, BadOnesAreNamed) {
  EXPECT_EQ(message_of([] { GatedDeltaNet({.width = 8}); }), "[gated_delta_net] heads is 0; must be at least 1");
  EXPECT_EQ(message_of([] { LinearAttentionMixer({.heads = 1}); }),
            "[linear_attention_mixer] width is 0; must be at least 1");
  EXPECT_EQ(message_of([] { MesaNet({.width = 8, .heads = 1, .iterations = 0}); }),
            "[mesa_net] iterations is 0; must be at least 1");
  EXPECT_EQ(message_of([] { Mamba2({.width = 96}); }), "[mamba2] head_dim is 64; must divide expand * width, 96");
  EXPECT_EQ(message_of([] { Mamba2({.width = 128, .groups = 3}); }), "[mamba2] groups is 3; must divide the heads, 2");
}

}  // namespace
}  // namespace ovq::nn::test
