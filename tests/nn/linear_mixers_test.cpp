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

// Token by token, channel by channel, as the official layer does it: the gate first, then a norm over each group's
// channels.
Tensor plain_mamba2(const Mamba2& mixer, const Tensor& u) {
  const Mamba2Options& o = mixer.options();
  std::map<std::string, Tensor> p;
  for (const auto& item : mixer.named_parameters()) p[item.key()] = item.value().detach().to(u.scalar_type());
  const int64_t batch = u.size(0), time = u.size(1), inner = o.heads * o.head_dim, shared = o.groups * o.state;
  const Tensor projected = at::linear(u, p["in_proj.weight"]);
  const Tensor z = projected.narrow(-1, 0, inner), xbc = projected.narrow(-1, inner, inner + 2 * shared);
  const Tensor dt = at::softplus(projected.narrow(-1, 2 * inner + 2 * shared, o.heads) + p["dt_bias"]);
  const Tensor padded = at::cat({at::zeros({batch, o.conv_width - 1, xbc.size(-1)}, u.options()), xbc}, 1);
  Tensor convolved = p["conv.bias"].expand_as(xbc);
  for (int64_t j = 0; j < o.conv_width; ++j)
    convolved = convolved + padded.narrow(1, j, time) * p["conv.weight"].select(1, j);
  convolved = at::silu(convolved);
  Tensor y = at::zeros({batch, time, inner}, u.options());
  for (int64_t channel = 0; channel < inner; ++channel) {
    const int64_t head = channel / o.head_dim, group = head / (o.heads / o.groups);
    const Tensor a = -p["A_log"][head].exp();
    Tensor h = at::zeros({batch, o.state}, u.options());
    for (int64_t t = 0; t < time; ++t) {
      const Tensor now = convolved.select(1, t), step = dt.select(1, t).select(1, head).unsqueeze(1);
      const Tensor x = now.narrow(1, channel, 1);
      const Tensor b = now.narrow(1, inner + group * o.state, o.state);
      const Tensor c = now.narrow(1, inner + shared + group * o.state, o.state);
      h = (step * a).exp() * h + step * x * b;
      y.select(1, t).select(1, channel).copy_((h * c).sum(1) + p["D"][head] * x.squeeze(1));
    }
  }
  const Tensor gated = (y * at::silu(z)).unflatten(-1, {o.groups, inner / o.groups});
  const Tensor normal = gated / (gated.square().mean(-1, true) + 1e-5).sqrt();
  return at::linear(normal.flatten(-2) * p["norm.weight"], p["out_proj.weight"]);
}

TEST(Mamba2, EqualsTheFormulaForAnyGroups) {
  for (const int64_t groups : {1, 2, 3, 6}) {
    const MixerCase mixer_case{
        .make =
            [&] {
              return std::make_shared<Mamba2>(Mamba2Options{.width = 12, .head_dim = 2, .state = 3, .groups = groups});
            },
        .width = 12};
    const auto mixer = std::dynamic_pointer_cast<Mamba2>(make_mixer(mixer_case));
    const torch::NoGradGuard no_grad;
    mixer->named_parameters()["norm.weight"].normal_();
    EXPECT_EQ(mixer->named_parameters()["norm.weight"].numel(), 12);
    for (const double scale : {1.0, 1e-3}) {                   // the eps counts in the second
      const Tensor u = make_input(mixer_case, 2, 70) * scale;  // more than a chunk
      EXPECT_TRUE(calibrated(mixer->forward(u), plain_mamba2(*mixer, u), plain_mamba2(*mixer, u.to(at::kDouble))))
          << groups << " groups, scale " << scale;
    }
  }
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
