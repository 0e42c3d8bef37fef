#include "ovq/nn/attention.h"
#include "ovq/nn/ovq_attention.h"
#include "ovq/nn/vq_attention.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "tests/nn/mixer_checks.h"

namespace ovq::nn::test {
namespace {

using kernels::Growth;
using kernels::OvqOptions;

// Projections may round differently with the size of the batch; what follows them may not.
TEST(FusedAttention, BatchesKeepTheirBits) {
  torch::manual_seed(1);
  const Tensor q = unit_norm(at::randn({3, 100, 4, 16})), k = unit_norm(at::randn({3, 100, 2, 16}));
  const Tensor v = at::randn({3, 100, 2, 16}), beta = at::full({4}, 4.0);
  const OvqOptions options{.chunk = 16, .centroids = 20};
  const Tensor ovq = ops::ovq_attention(q, k, v, beta, options), full = ops::attention(q, k, v, beta);
  for (int64_t b = 0; b < 3; ++b) {
    const auto one = [&](const Tensor& x) { return x.narrow(0, b, 1); };
    EXPECT_TRUE(close(ops::ovq_attention(one(q), one(k), one(v), beta, options), one(ovq), 0));
    EXPECT_TRUE(close(ops::attention(one(q), one(k), one(v), beta), one(full), 0));
  }
}

TEST(OvqAttentionLayer, IsAttentionWhileEveryKeyIsACentroid) {
  torch::manual_seed(2);
  const Attention attention({.heads = kGrouped});
  OvqAttention ovq({.heads = kGrouped, .dictionary = {.chunk = 4, .centroids = int64_t{1} << 20}});
  const torch::NoGradGuard no_grad;
  for (const auto& item : attention.named_parameters()) ovq.named_parameters()[item.key()].copy_(item.value() * 10);
  for (const auto& item : attention.named_parameters()) item.value().mul_(10);
  const Tensor x = at::randn({2, 50, 6});
  EXPECT_TRUE(close(ovq.forward(x), const_cast<Attention&>(attention).forward(x), 2e-6));
}

TEST(OvqAttentionLayer, MoreCentroidsMidway) {
  torch::manual_seed(3);
  OvqAttention mixer({.heads = kHeads, .dictionary = {.chunk = 4, .centroids = 6}});
  const Tensor x = at::randn({1, 100, 6});
  MixerState state;
  mixer.step(x.slice(1, 0, 50), state);
  const int64_t size = state.ovq->tensors().keys.size(2);
  mixer.set_centroids(60);
  mixer.step(x.slice(1, 50), state);
  EXPECT_EQ(state.ovq->options().centroids, 60);
  EXPECT_GT(state.ovq->tensors().keys.size(2), size + 10);
  EXPECT_THROW(mixer.set_centroids(0), std::invalid_argument);
}

// What a state keeps must not hold on to the whole prompt.
TEST(OvqAttentionLayer, LongPromptsLeaveNothingBehind) {
  torch::manual_seed(4);
  OvqAttention mixer({.heads = {.width = 6, .heads = 2, .head_dim = 4, .value_shift = true, .convolution = true},
                      .dictionary = {.chunk = 4, .centroids = 6}});
  const torch::NoGradGuard no_grad;
  MixerState state;
  mixer.forward(at::randn({1, 5000, 6}), state);
  EXPECT_EQ(state.nbytes(), mixer.state_bytes(5000));
  EXPECT_EQ(mixer.state_bytes(5000), mixer.state_bytes(50'000));
}

// A weighted layer whose gate tells tokens apart.
std::shared_ptr<OvqAttention> weighted_layer(OvqAttentionOptions options) {
  options.weighted_writes = true;
  const auto mixer = std::make_shared<OvqAttention>(options);
  const torch::NoGradGuard no_grad;
  mixer->named_parameters()["w_gate.weight"].normal_(0, 0.1);
  return mixer;
}

TEST(WeightedWrites, GateStartsTheSameForEveryToken) {
  const OvqAttention mixer({.heads = kGrouped, .weighted_writes = true});
  EXPECT_TRUE(close(mixer.named_parameters()["w_gate.weight"], at::zeros({2, 6}), 0));
  EXPECT_TRUE(close(mixer.named_parameters()["w_gate.bias"], at::full({2}, 3.0), 0));
  EXPECT_TRUE(mixer.options().dictionary.weighted);
}

TEST(WeightedWrites, ClosedGateStaysPositive) {
  OvqAttention mixer({.heads = kHeads, .dictionary = {.chunk = 4, .centroids = 6}, .weighted_writes = true});
  const torch::NoGradGuard no_grad;
  mixer.named_parameters()["w_gate.bias"].fill_(-1000);
  EXPECT_TRUE(at::isfinite(mixer.forward(at::randn({2, 30, 6}))).all().item<bool>());
}

// As without weights: the token's output says so, nobody before it or beside it notices.
TEST(WeightedWrites, NanIsNoError) {
  torch::manual_seed(10);
  const auto mixer = weighted_layer({.heads = kHeads, .dictionary = {.chunk = 4, .centroids = 6}});
  const torch::NoGradGuard no_grad;
  const Tensor x = at::randn({2, 30, 6}), clean = mixer->forward(x);
  x[0][9].fill_(NAN);
  const Tensor y = mixer->forward(x);
  EXPECT_TRUE(close(y[0].slice(0, 0, 9), clean[0].slice(0, 0, 9), 1e-6));
  EXPECT_TRUE(close(y[1], clean[1], 1e-6));
  EXPECT_TRUE(at::isnan(y[0][9]).all().item<bool>());
  MixerState state;
  EXPECT_TRUE(at::isnan(all_steps(*mixer, x, state)[0][9]).all().item<bool>());
}

// The op on the layer's own projections, each pair with the weight of its key.
TEST(WeightedWrites, WeightGoesWithItsKey) {
  torch::manual_seed(9);
  for (const bool value_shift : {false, true}) {
    const OvqOptions dictionary{.chunk = 4, .centroids = 6};
    HeadOptions grouped = kGrouped;
    grouped.value_shift = value_shift;
    const auto mixer = weighted_layer({.heads = grouped, .dictionary = dictionary});
    const torch::NoGradGuard no_grad;
    const auto parameters = mixer->named_parameters();
    const Tensor x = at::randn({2, 30, 6});
    const auto heads = [&](const char* name, int64_t count) {
      return at::linear(x, parameters[name]).view({2, 30, count, 4});
    };
    Tensor q = unit_norm(heads("q_proj.weight", 4)), k = unit_norm(heads("k_proj.weight", 2));
    Tensor v = heads("v_proj.weight", 2);
    Tensor w = at::sigmoid(at::linear(x, parameters["w_gate.weight"], parameters["w_gate.bias"]));
    if (value_shift) {
      const auto before = [](const Tensor& y) { return at::cat({y.slice(1, 0, 1), y.slice(1, 0, 29)}, 1); };
      k = before(k);
      w = before(w);
      v = 0.5 * before(v) + 0.5 * v;
    }
    const Tensor o = ops::ovq_attention(q, k, v, parameters["b"] * 2.0, dictionary, {}, w);
    EXPECT_TRUE(close(mixer->forward(x), at::linear(o.flatten(2), parameters["o_proj.weight"]), 1e-5));
  }
}

TEST(AttentionMixerOptions, BadOnesAreNamed) {
  const auto attention = [](const AttentionOptions& options) { return message_of([&] { Attention{options}; }); };
  EXPECT_EQ(attention({}), "[attention] width is 0; must be at least 1");
  EXPECT_EQ(attention({.heads = {.width = 8, .heads = 0}}), "[attention] heads is 0; must be at least 1");
  EXPECT_EQ(attention({.heads = {.width = 8, .heads = 3}}),
            "[attention] heads is 3; must divide width 8, or head_dim be given");
  EXPECT_EQ(attention({.heads = {.width = 8, .heads = 4, .kv_heads = 3}}),
            "[attention] kv_heads is 3; must divide heads 4");
  EXPECT_EQ(attention({.heads = {.width = 8, .head_dim = -1}}), "[attention] head_dim is -1; must be at least 1");
  EXPECT_EQ(attention({.heads = {.width = 8, .beta_init = NAN}}),
            "[attention] beta_init is nan; must be finite, and within -1e+35 and 1e+35");
  EXPECT_EQ(attention({.heads = {.width = 8}, .window = -1}),
            "[attention] window is -1; must be at least 1, or 0 for none");
  EXPECT_EQ(attention({.heads = {.width = 9}, .rope = true}), "[attention] head_dim is 9; must be even with rope");
  EXPECT_EQ(attention({.heads = {.width = 8}, .rope_base = 0}), "[attention] rope_base is 0; must be positive");
  const auto ovq = [](const OvqOptions& dictionary) {
    return message_of([&] { OvqAttention{{.heads = {.width = 9}, .dictionary = dictionary}}; });
  };
  EXPECT_EQ(ovq({.chunk = 0}), "[ovq] chunk is 0; must be at least 1");
  EXPECT_EQ(ovq({.centroids = 0}), "[ovq] centroids is 0; must be at least 1");
  EXPECT_EQ(ovq({.growth = Growth::linear}), "[ovq] total_tokens is 0; linear growth needs at least 1");
  EXPECT_EQ(ovq({.rate = 2.0f}), "[ovq] rate is 2; must be in (0, 1]");
  EXPECT_EQ(ovq({.rope = true}), "[ovq] head_dim is 9; must be even with rope");
  EXPECT_EQ(
      message_of([] { OvqAttention{{.heads = {.width = 8}, .dictionary = {.rate = 0.1f}, .weighted_writes = true}}; }),
      "[ovq] weights do not go with a constant rate");
  const auto vq = [](VqAttentionOptions options) {
    options.heads.width = 8;
    return message_of([&] { VqAttention{options}; });
  };
  EXPECT_EQ(vq({.codewords = 1}), "[vq] codewords is 1; must be at least 2");
  EXPECT_EQ(vq({.chunk = 0}), "[vq] chunk is 0; must be at least 1");
  EXPECT_EQ(vq({.no_use = -1}), "[vq] no_use is -1; must be at least 0");
  EXPECT_EQ(vq({.noise = NAN}), "[vq] noise is nan; must be at least 0");
  EXPECT_EQ(vq({.ema_decay = 1}), "[vq] ema_decay is 1; must be between 0 and 1");
  EXPECT_EQ(vq({.commitment = -1}), "[vq] commitment is -1; must be at least 0");
  EXPECT_EQ(vq({.warmup = -1}), "[vq] warmup is -1; must be at least 0");
}

}  // namespace
}  // namespace ovq::nn::test
