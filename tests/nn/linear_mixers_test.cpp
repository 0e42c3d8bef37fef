#include "ovq/nn/gated_delta_net.h"
#include "ovq/nn/linear_attention_mixer.h"
#include "ovq/nn/mamba2.h"
#include "ovq/nn/mesa_net.h"
#include "tests/nn/mixer_checks.h"

namespace ovq::nn::test {
namespace {

struct NamedCase {
  std::string name;
  MixerCase mixer;
};

void PrintTo(const NamedCase& x, std::ostream* out) { *out << x.name; }

template <class Made, class Options>
NamedCase named_case(const std::string& name, const Options& options) {
  return {name, {.make = [options] { return std::make_shared<Made>(options); }, .width = options.width}};
}

std::vector<NamedCase> cases() {
  return {
      named_case<LinearAttentionMixer>(
          "LinearAttentionMixer", LinearAttentionMixerOptions{.width = 6, .heads = 2, .key_dim = 4, .value_dim = 3}),
      named_case<GatedDeltaNet>("GatedDeltaNet",
                                GatedDeltaNetOptions{.width = 6, .heads = 2, .key_dim = 4, .value_dim = 3}),
      named_case<Mamba2>("Mamba2", Mamba2Options{.width = 6, .head_dim = 3, .expand = 2, .state = 4, .groups = 2}),
      named_case<MesaNet>("MesaNet", MesaNetOptions{.width = 6, .heads = 2, .key_dim = 4, .value_dim = 3}),
  };
}

class LinearMixers : public testing::TestWithParam<NamedCase> {};

TEST_P(LinearMixers, StepsEqualForward) { expect_steps_equal_forward(GetParam().mixer); }
TEST_P(LinearMixers, FloatCalibrated) { expect_float_calibrated(GetParam().mixer); }
TEST_P(LinearMixers, PiecesEqualWhole) { expect_pieces_equal_whole(GetParam().mixer); }
TEST_P(LinearMixers, Gradients) { expect_mixer_gradients(GetParam().mixer); }
TEST_P(LinearMixers, Causal) { expect_causal(GetParam().mixer); }
TEST_P(LinearMixers, BatchInvariant) { expect_batch_invariant(GetParam().mixer); }
TEST_P(LinearMixers, PackedEqualAlone) { expect_packed_equal_alone(GetParam().mixer); }
TEST_P(LinearMixers, StateBytes) { expect_state_bytes(GetParam().mixer); }
TEST_P(LinearMixers, ClonesIndependent) { expect_clones_independent(GetParam().mixer); }
TEST_P(LinearMixers, BadInputThrows) { expect_bad_input_throws(GetParam().mixer); }

INSTANTIATE_TEST_SUITE_P(, LinearMixers, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

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
  const auto message = [](const auto& make) -> std::string {
    try {
      make();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message([] { GatedDeltaNet({.width = 8}); }), "[gated_delta_net] heads is 0; must be at least 1");
  EXPECT_EQ(message([] { LinearAttentionMixer({.heads = 1}); }),
            "[linear_attention_mixer] width is 0; must be at least 1");
  EXPECT_EQ(message([] { MesaNet({.width = 8, .heads = 1, .iterations = 0}); }),
            "[mesa_net] iterations is 0; must be at least 1");
  EXPECT_EQ(message([] { Mamba2({.width = 96}); }), "[mamba2] head_dim is 64; must divide expand * width, 96");
  EXPECT_EQ(message([] { Mamba2({.width = 128, .groups = 3}); }), "[mamba2] groups is 3; must divide the heads, 2");
}

}  // namespace
}  // namespace ovq::nn::test
