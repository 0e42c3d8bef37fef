// What holds for every mixer, over all of them with all their options.
#include "ovq/nn/attention.h"
#include "ovq/nn/gated_delta_net.h"
#include "ovq/nn/linear_attention_mixer.h"
#include "ovq/nn/mamba2.h"
#include "ovq/nn/mesa_net.h"
#include "ovq/nn/ovq_attention.h"
#include "ovq/nn/vq_attention.h"
#include "tests/nn/mixer_checks.h"

namespace ovq::nn::test {
namespace {

using kernels::Growth;
using kernels::NewCentroids;
using kernels::OvqOptions;

struct NamedCase {
  std::string name;
  MixerCase mixer;
};

void PrintTo(const NamedCase& x, std::ostream* out) { *out << x.name; }

int64_t width_of(const auto& options) {
  if constexpr (requires { options.width; }) {
    return options.width;
  } else {
    return options.heads.width;
  }
}

constexpr int kShift = 1, kConvolution = 2;

HeadOptions with(HeadOptions heads, int extras) {
  heads.value_shift = (extras & kShift) != 0;
  heads.convolution = (extras & kConvolution) != 0;
  return heads;
}

template <class Made, class Options>
NamedCase named_case(const std::string& name, const Options& options) {
  return {name,
          {.make =
               [options] {
                 const auto mixer = std::make_shared<Made>(options);
                 if constexpr (requires { mixer->start(); }) mixer->start();
                 mixer->eval();
                 return mixer;
               },
           .width = width_of(options)}};
}

// Dictionaries that fill up within the 130 tokens of the checks; gradient checks see a few chunks of them.
NamedCase ovq_case(const std::string& name, OvqAttentionOptions options) {
  if (options.heads.width == 0) options.heads = kHeads;
  options.dictionary.chunk = 4;
  if (options.dictionary.centroids == OvqOptions{}.centroids) options.dictionary.centroids = 6;
  NamedCase made = named_case<OvqAttention>(name, options);
  if (options.weighted_writes) {
    made.mixer.make = [make = made.mixer.make] {
      const std::shared_ptr<Mixer> mixer = make();
      const torch::NoGradGuard no_grad;
      mixer->named_parameters()["w_gate.weight"].normal_(0, 0.05);  // it starts as zero: the same for all tokens
      return mixer;
    };
  }
  made.mixer.gradient_time = 10;
  return made;
}

std::vector<NamedCase> every_mixer() {
  std::vector<NamedCase> all = {
      named_case<Attention>("Full", AttentionOptions{.heads = kHeads}),
      named_case<Attention>("FullRope", AttentionOptions{.heads = kHeads, .rope = true}),
      named_case<Attention>("Grouped", AttentionOptions{.heads = kGrouped, .rope = true}),
      named_case<Attention>("Window", AttentionOptions{.heads = kHeads, .window = 5}),
      named_case<Attention>("WindowRope", AttentionOptions{.heads = kGrouped, .window = 64, .rope = true}),
      named_case<Attention>("WindowOfOne", AttentionOptions{.heads = kHeads, .window = 1}),
      named_case<Attention>("FullShift", AttentionOptions{.heads = with(kHeads, kShift)}),
      named_case<Attention>("FullConvolution", AttentionOptions{.heads = with(kHeads, kConvolution)}),
      named_case<Attention>(
          "WindowEverything",
          AttentionOptions{.heads = with(kGrouped, kShift | kConvolution), .window = 5, .rope = true}),
      ovq_case("Ovq", {}),
      ovq_case("OvqGrouped", {.heads = kGrouped}),
      ovq_case("OvqRope", {.dictionary = {.rope = true}}),
      ovq_case("OvqShift", {.heads = with(kHeads, kShift)}),
      ovq_case("OvqConvolution", {.heads = with(kHeads, kConvolution)}),
      ovq_case("OvqEverything", {.heads = with(kGrouped, kShift | kConvolution), .dictionary = {.rope = true}}),
      ovq_case("OvqLinearGrowth", {.dictionary = {.growth = Growth::linear, .total_tokens = 100}}),
      ovq_case("OvqAllGrowth", {.dictionary = {.growth = Growth::all}}),
      ovq_case("OvqRandom", {.dictionary = {.new_centroids = NewCentroids::random, .seed = 3}}),
      ovq_case("OvqConstantRate", {.dictionary = {.rate = 0.025f}}),
      ovq_case("OvqNormalize", {.dictionary = {.normalize = true}}),
      ovq_case("OvqValueNorms", {.dictionary = {.value_norms = true}}),
      ovq_case("OvqWeighted", {.weighted_writes = true}),
      ovq_case("OvqWeightedGrouped", {.heads = kGrouped, .dictionary = {.normalize = true}, .weighted_writes = true}),
      ovq_case("OvqWeightedShift", {.heads = with(kHeads, kShift), .weighted_writes = true}),
      ovq_case("OvqWeightedEverything",
               {.heads = with(kGrouped, kShift | kConvolution), .dictionary = {.rope = true}, .weighted_writes = true}),
      ovq_case("OvqEveryKey", {.dictionary = {.centroids = int64_t{1} << 20}}),
      named_case<LinearAttentionMixer>(
          "LinearAttentionMixer", LinearAttentionMixerOptions{.width = 6, .heads = 2, .key_dim = 4, .value_dim = 3}),
      named_case<GatedDeltaNet>("GatedDeltaNet",
                                GatedDeltaNetOptions{.width = 6, .heads = 2, .key_dim = 4, .value_dim = 3}),
      named_case<Mamba2>("Mamba2", Mamba2Options{.width = 6, .head_dim = 3, .expand = 2, .state = 4, .groups = 2}),
      named_case<Mamba2>("Mamba2Groups",
                         Mamba2Options{.width = 6, .head_dim = 2, .expand = 2, .state = 4, .groups = 3}),
      named_case<MesaNet>("MesaNet", MesaNetOptions{.width = 6, .heads = 2, .key_dim = 4, .value_dim = 3}),
  };
  for (const VqForm form : {VqForm::quadratic, VqForm::linear}) {
    for (const int extras : {0, kShift | kConvolution}) {
      const std::string name = std::string("Vq") + (form == VqForm::linear ? "Linear" : "Quadratic");
      all.push_back(named_case<VqAttention>(
          name + (extras == 0 ? "" : "Everything"),
          VqAttentionOptions{.heads = with(kGrouped, extras), .codewords = 5, .chunk = 4, .form = form}));
      all.back().mixer.gradient_time = 10;
    }
  }
  return all;
}

class Mixers : public testing::TestWithParam<NamedCase> {};

TEST_P(Mixers, StepsEqualForward) { expect_steps_equal_forward(GetParam().mixer); }
TEST_P(Mixers, PiecesEqualWhole) { expect_pieces_equal_whole(GetParam().mixer); }
TEST_P(Mixers, Gradients) { expect_mixer_gradients(GetParam().mixer); }
TEST_P(Mixers, Causal) { expect_causal(GetParam().mixer); }
TEST_P(Mixers, BatchInvariant) { expect_batch_invariant(GetParam().mixer); }
TEST_P(Mixers, PackedEqualAlone) { expect_packed_equal_alone(GetParam().mixer); }
TEST_P(Mixers, StateBytes) { expect_state_bytes(GetParam().mixer); }
TEST_P(Mixers, ClonesIndependent) { expect_clones_independent(GetParam().mixer); }
TEST_P(Mixers, ErrorsLeaveAWholeState) { expect_errors_leave_a_whole_state(GetParam().mixer); }
TEST_P(Mixers, RefusesFloat64) { expect_refuses_float64(GetParam().mixer); }
TEST_P(Mixers, BadInputThrows) { expect_bad_input_throws(GetParam().mixer); }

INSTANTIATE_TEST_SUITE_P(, Mixers, testing::ValuesIn(every_mixer()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ovq::nn::test
