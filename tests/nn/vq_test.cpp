// VQ-attention beyond what holds for every mixer: its two forms, and how its codebook learns.
#include <ATen/CPUGeneratorImpl.h>

#include <set>

#include "ovq/nn/vq_attention.h"
#include "ovq/ops/norm/torch.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::nn::test {
namespace {

using namespace ops::test;

constexpr double kTolerance = 2e-6;

Tensor unit_rows(at::IntArrayRef shape) { return ops::l2_norm(at::randn(shape), 1e-12); }

TEST(VqAttentionForms, LinearEqualsQuadratic) {
  for (const int64_t kv_heads : {1, 2, 4}) {
    for (const int64_t chunk : {1, 3, 16, 64}) {
      torch::manual_seed(1);
      VqAttentionOptions options{.heads = {.width = 12, .heads = 4, .kv_heads = kv_heads, .head_dim = 4},
                                 .codewords = 7,
                                 .chunk = chunk,
                                 .form = VqForm::linear};
      VqAttention linear(options);
      options.form = VqForm::quadratic;
      VqAttention quadratic(options);
      const torch::NoGradGuard no_grad;
      for (const auto& item : linear.named_parameters()) {
        if (item.value().dim() == 2) item.value().mul_(20);
        quadratic.named_parameters()[item.key()].copy_(item.value());
      }
      for (VqAttention* mixer : {&linear, &quadratic}) {
        mixer->start();
        mixer->eval();
      }
      for (const int64_t time : {1, 2, 31, 32, 33, 130}) {
        const Tensor x = at::randn({2, time, 12});
        EXPECT_TRUE(close(linear.forward(x), quadratic.forward(x), kTolerance))
            << "chunk " << chunk << ", time " << time;
      }
    }
  }
}

TEST(VqAttentionForms, NoSequencesAreNoTokens) {
  for (const VqForm form : {VqForm::linear, VqForm::quadratic}) {
    VqAttention mixer({.heads = {.width = 12, .heads = 2}, .codewords = 7, .chunk = 4, .form = form});
    mixer.start();
    mixer.eval();
    EXPECT_EQ(mixer.forward(at::zeros({1, 0, 12}), at::tensor({0})).sizes(), at::IntArrayRef({1, 0, 12}));
  }
}

// Two codewords at right angles and one between: which is nearest is plain to see.
VectorQuantizer make_quantizer(CodebookTraining training, double noise, double no_use = 0) {
  VectorQuantizer quantizer(
      {.heads = 2, .codewords = 5, .dim = 3, .training = training, .no_use = no_use, .noise = noise});
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  quantizer.codebook.copy_(at::randn({2, 5, 3}) * 3);  // not of norm one: codewords() is
  return quantizer;
}

at::Generator generator(uint64_t seed) {
  at::Generator made = at::detail::createCPUGenerator(seed);
  return made;
}

TEST(Diveq, WithoutNoiseIsTheCodeword) {
  VectorQuantizer quantizer = make_quantizer(CodebookTraining::diveq, 0);
  const Tensor z = unit_rows({2, 6, 2, 3});
  const Tensor index = quantizer.nearest(z), quantized = quantizer.quantize(z, 1);
  double similarity = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        const Tensor word = quantizer.codewords()[h][index[b][t][h].item<int64_t>()];
        const Tensor distances = (quantizer.codewords()[h] - z[b][t][h]).norm(2, -1);
        EXPECT_EQ(distances.argmin().item<int64_t>(), index[b][t][h].item<int64_t>());
        EXPECT_TRUE(close(quantized[b][t][h], word, kTolerance));
        similarity += word.dot(z[b][t][h]).item<double>() / 24;
      }
    }
  }
  EXPECT_NEAR(quantizer.similarity(), similarity, 1e-6);
}

// dL/dc_i = e (u . g), dL/dz = g - e (u . g), with the noise drawn as the quantizer draws it.
TEST(Diveq, GradientsAreTheFormula) {
  VectorQuantizer quantizer = make_quantizer(CodebookTraining::diveq, 0.3);
  const Tensor z = unit_rows({1, 7, 2, 3}).requires_grad_(true);
  const Tensor words = quantizer.codewords(), index = quantizer.nearest(z);
  const Tensor quantized = quantizer.quantize(z, 17);
  const Tensor g = at::randn(quantized.sizes());
  const auto actual = torch::autograd::grad({(quantized * g).sum()}, {z, quantizer.codebook});

  const Tensor noise = at::randn({2, 7, 3}, generator(17)) * 0.3;
  const Tensor d_z = at::zeros_like(z), d_words = at::zeros_like(words);
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      const int64_t i = index[0][t][h].item<int64_t>();
      const Tensor delta = (words[h][i] - z[0][t][h]).detach(), n = delta.norm();
      const Tensor noisy = delta + noise[h][t], u = noisy / noisy.norm(), e = delta / n;
      EXPECT_TRUE(close(quantized[0][t][h], (z[0][t][h] + n * u).detach(), kTolerance));
      const Tensor along = e * u.dot(g[0][t][h]);
      d_z[0][t][h].copy_(g[0][t][h] - along);
      d_words[h][i].add_(along);
    }
  }
  EXPECT_TRUE(close(actual[0], d_z, kTolerance));
  const auto d_codebook = torch::autograd::grad({words}, {quantizer.codebook}, {d_words});
  EXPECT_TRUE(close(actual[1], d_codebook[0], kTolerance));
}

// A key that is its codeword: no direction, no gradient of the distance.
TEST(Diveq, ZeroDistanceIsHarmless) {
  for (const CodebookTraining training : {CodebookTraining::diveq, CodebookTraining::sf_diveq}) {
    for (const double noise : {0.0, 1e-3}) {
      VectorQuantizer quantizer = make_quantizer(training, noise);
      const Tensor z =
          quantizer.codewords().detach().narrow(1, 2, 1).transpose(0, 1).unsqueeze(0).clone().requires_grad_(true);
      const Tensor quantized = quantizer.quantize(z, 3);
      if (training == CodebookTraining::diveq) {
        EXPECT_TRUE(close(quantized, z, 0));
      }
      const auto gradients = torch::autograd::grad({quantized.sum()}, {z, quantizer.codebook});
      for (const Tensor& gradient : gradients) EXPECT_TRUE(gradient.isfinite().all().item<bool>());
      if (training == CodebookTraining::diveq) {
        EXPECT_TRUE(close(gradients[0], at::ones_like(z), 0));
        EXPECT_TRUE(close(gradients[1], at::zeros_like(gradients[1]), 0));
      }
    }
  }
}

// dL/da = (1 - l) e_a (u_a . g), dL/db = l e_b (u_b . g), dL/dz = g - dL/da - dL/db.
TEST(SpaceFillingDiveq, GradientsAreTheFormula) {
  VectorQuantizer quantizer = make_quantizer(CodebookTraining::sf_diveq, 0.2);
  const Tensor z = unit_rows({1, 9, 2, 3}).requires_grad_(true);
  const Tensor words = quantizer.codewords();
  const Tensor quantized = quantizer.quantize(z, 5);
  const Tensor g = at::randn(quantized.sizes());
  const auto actual = torch::autograd::grad({(quantized * g).sum()}, {z, quantizer.codebook});

  at::Generator source = generator(5);
  const Tensor shares = at::rand({2, 4, 1}, source);
  const Tensor noise_a = at::randn({2, 9, 3}, source) * 0.2;
  const Tensor noise_b = at::randn({2, 9, 3}, source) * 0.2;
  const Tensor d_z = at::zeros_like(z), d_words = at::zeros_like(words);
  std::set<int64_t> segments;
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      const Tensor key = z[0][t][h].detach(), first = words[h].slice(0, 0, 4).detach(),
                   second = words[h].slice(0, 1).detach();
      const Tensor points = (1 - shares[h]) * first + shares[h] * second;
      const int64_t i = (points - key).norm(2, -1).argmin().item<int64_t>();
      segments.insert(i);
      const double l = shares[h][i][0].item<double>();
      const auto part = [&](const Tensor& word, const Tensor& noise) {
        const Tensor delta = word - key, n = delta.norm(), noisy = delta + noise, u = noisy / noisy.norm();
        return std::pair{n * u, delta / n * u.dot(g[0][t][h])};
      };
      const auto [move_a, d_a] = part(first[i], noise_a[h][t]);
      const auto [move_b, d_b] = part(second[i], noise_b[h][t]);
      EXPECT_TRUE(close(quantized[0][t][h], key + (1 - l) * move_a + l * move_b, kTolerance));
      d_words[h][i].add_((1 - l) * d_a);
      d_words[h][i + 1].add_(l * d_b);
      d_z[0][t][h].copy_(g[0][t][h] - (1 - l) * d_a - l * d_b);
    }
  }
  EXPECT_GE(segments.size(), 2u);
  EXPECT_TRUE(close(actual[0], d_z, kTolerance));
  const auto d_codebook = torch::autograd::grad({words}, {quantizer.codebook}, {d_words});
  EXPECT_TRUE(close(actual[1], d_codebook[0], kTolerance));
}

TEST(SpaceFillingDiveq, WithoutNoiseIsThePointOfTheSegment) {
  VectorQuantizer quantizer = make_quantizer(CodebookTraining::sf_diveq, 0);
  const Tensor z = unit_rows({1, 1, 2, 3}), quantized = quantizer.quantize(z, 8);
  const Tensor shares = at::rand({2, 4, 1}, generator(8));
  for (int64_t h = 0; h < 2; ++h) {
    const Tensor words = quantizer.codewords()[h];
    const Tensor points = (1 - shares[h]) * words.slice(0, 0, 4) + shares[h] * words.slice(0, 1);
    const Tensor distances = (points - z[0][0][h]).norm(2, -1);
    EXPECT_TRUE(close(quantized[0][0][h], points[distances.argmin().item<int64_t>()], kTolerance));
  }
}

TEST(Quantizer, NoiseIsAFunctionOfTheSeed) {
  for (const CodebookTraining training : {CodebookTraining::diveq, CodebookTraining::sf_diveq}) {
    const Tensor z = unit_rows({2, 8, 2, 3});
    const auto quantized = [&](uint64_t seed) { return make_quantizer(training, 0.1).quantize(z, seed); };
    const Tensor first = quantized(7);
    torch::manual_seed(99);  // the global generator has no part in it
    EXPECT_TRUE(close(quantized(7), first, 0));
    EXPECT_FALSE(close(quantized(8), first, 1e-6));
  }
}

TEST(Quantizer, NoUseBonusRevivesCodewords) {
  for (const CodebookTraining training : {CodebookTraining::ema, CodebookTraining::diveq, CodebookTraining::sf_diveq}) {
    // Keys around one direction, codewords everywhere: without the bonus most are never used; with it, one at
    // the far side is after 2 / 0.0025 steps.
    const auto dead_after = [&](double no_use) {
      VectorQuantizer quantizer(
          {.heads = 1, .codewords = 64, .dim = 4, .training = training, .no_use = no_use, .noise = 1e-3});
      torch::manual_seed(4);
      const torch::NoGradGuard no_grad;
      quantizer.codebook.copy_(ops::l2_norm(at::randn({1, 64, 4}), 1e-12));
      for (int64_t step = 0; step < 1000; ++step) {
        const Tensor keys = 0.1 * at::randn({1, 32, 1, 4});
        keys.select(-1, 0).add_(1);
        quantizer.quantize(ops::l2_norm(keys, 1e-12), static_cast<uint64_t>(step));
        quantizer.end_step();
      }
      return quantizer.dead(900);
    };
    const int64_t without = dead_after(0), with = dead_after(0.0025);
    EXPECT_GT(without, 20);
    EXPECT_EQ(with, 0) << without << " without";
  }
}

TEST(Quantizer, MovingAveragesReachTheMeansOfTheirKeys) {
  VectorQuantizer quantizer({.heads = 1,
                             .codewords = 3,
                             .dim = 3,
                             .training = CodebookTraining::ema,
                             .no_use = 0,
                             .ema_decay = 0.9,
                             .commitment = 0.5});
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  quantizer.codebook.copy_(ops::l2_norm(at::eye(3) + 0.5 * at::rand({3, 3})).unsqueeze(0));
  quantizer.ema_sums.copy_(quantizer.codebook);
  // Clusters around the first two axes; nothing near the third.
  const Tensor around = ops::l2_norm(at::tensor({1.0f, 0.1f, 0.0f, 0.0f, 1.0f, 0.2f}).view({2, 3}), 1e-12);
  const Tensor unused = quantizer.codewords()[0][2].clone();
  Tensor keys;
  for (int64_t step = 0; step < 2000; ++step) {
    keys = ops::l2_norm(around.repeat({50, 1}).view({1, 100, 1, 3}) + 0.05 * at::randn({1, 100, 1, 3}), 1e-12);
    quantizer.quantize(keys, 0);
    quantizer.end_step();
  }
  EXPECT_TRUE(close(quantizer.codewords()[0].slice(0, 0, 2), around, 0.02));
  EXPECT_TRUE(close(quantizer.codewords()[0][2], unused, 1e-5));  // long unused, but still of norm one
  const Tensor nearest = quantizer.nearest(keys).view({100});
  EXPECT_TRUE(close(nearest, at::tensor({0, 1}, at::kLong).repeat({50}), 0));
  EXPECT_NEAR(quantizer.similarity(), 1, 0.02);
  EXPECT_GT(quantizer.similarity(), 0.99);
}

// Summed over heads, averaged over tokens.
TEST(Quantizer, CommitmentPullsTheKeys) {
  VectorQuantizer quantizer(
      {.heads = 2, .codewords = 5, .dim = 3, .training = CodebookTraining::ema, .commitment = 0.5});
  torch::manual_seed(6);
  const Tensor z = unit_rows({1, 4, 2, 3}).requires_grad_(true);
  const Tensor words = quantizer.codewords().clone(), index = quantizer.nearest(z);
  const Tensor quantized = quantizer.quantize(z, 0), g = at::randn_like(z);
  EXPECT_TRUE(close(torch::autograd::grad({(quantized * g).sum()}, {z})[0], g, 0));  // straight through
  const Tensor pull = torch::autograd::grad({quantizer.commitment_loss()}, {z})[0];
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      const Tensor word = words[h][index[0][t][h].item<int64_t>()];
      EXPECT_TRUE(close(quantized[0][t][h], word, kTolerance));
      EXPECT_TRUE(close(pull[0][t][h], 0.5 * 2 * (z[0][t][h] - word) / 4, kTolerance));
    }
  }
}

TEST(Quantizer, NoTokensHaveNoCommitmentLoss) {
  VectorQuantizer quantizer({.heads = 2, .codewords = 5, .dim = 3, .training = CodebookTraining::ema});
  const Tensor z = at::zeros({2, 0, 2, 3}).requires_grad_(true);
  EXPECT_EQ(quantizer.quantize(z, 0).sizes(), z.sizes());
  EXPECT_EQ(quantizer.commitment_loss().item<double>(), 0);
}

TEST(Quantizer, StartsFromMeansOfKeys) {
  VectorQuantizer quantizer = make_quantizer(CodebookTraining::sf_diveq, 0);
  quantizer.unused.fill_(9);
  const Tensor z = unit_rows({2, 10, 2, 3});  // 20 keys a head, four for each codeword
  quantizer.collect(z);
  EXPECT_TRUE(quantizer.end_step());
  const Tensor blocks = z.permute({2, 0, 1, 3}).reshape({2, 5, 4, 3}).mean(2);
  EXPECT_TRUE(close(quantizer.codewords(), blocks / blocks.norm(2, -1, true), 1e-6));
  EXPECT_EQ(quantizer.dead(1), 0);
  quantizer.collect(unit_rows({1, 2, 2, 3}));  // fewer keys than codewords
  quantizer.end_step();
  EXPECT_TRUE(close(quantizer.codewords().norm(2, -1), at::ones({2, 5}), 1e-6));
}

// Forwards of one step see the same codewords and counters; the step's end moves them on by all of them together.
TEST(Quantizer, AStepIsAllItsForwards) {
  for (const CodebookTraining training : {CodebookTraining::ema, CodebookTraining::diveq, CodebookTraining::sf_diveq}) {
    torch::manual_seed(1);
    VectorQuantizer together = make_quantizer(training, 1e-3, 0.01);
    torch::manual_seed(1);
    VectorQuantizer parts = make_quantizer(training, 1e-3, 0.01);
    const torch::NoGradGuard no_grad;
    for (int64_t step = 0; step < 5; ++step) {
      const Tensor z = unit_rows({4, 1, 2, 3});
      together.quantize(z, 1);
      const Tensor unused = parts.unused.clone(), codebook = parts.codebook.clone();
      for (int64_t row = 0; row < 4; ++row) {
        // The share of a segment is noise of the forward, so its choices differ between one forward and four.
        parts.quantize(training == CodebookTraining::sf_diveq ? z : z.narrow(0, row, 1), 1);
        EXPECT_TRUE(close(parts.unused, unused, 0));
        EXPECT_TRUE(close(parts.codebook, codebook, 0));
      }
      EXPECT_FALSE(together.end_step());
      EXPECT_FALSE(parts.end_step());
      EXPECT_TRUE(close(parts.unused, together.unused, 0));
      EXPECT_TRUE(close(parts.codebook, together.codebook, kTolerance));
      if (training == CodebookTraining::ema) {
        EXPECT_FALSE(close(parts.codebook, codebook, 1e-6));
      }
    }
    EXPECT_GT(together.unused.max().item<int64_t>(), 0);
    const Tensor before = parts.unused.clone(), codebook = parts.codebook.clone();
    parts.quantize(unit_rows({1, 1, 2, 3}), 1);
    parts.drop_step();
    parts.end_step();  // nothing was noted: no step
    EXPECT_TRUE(close(parts.unused, before, 0));
    EXPECT_TRUE(close(parts.codebook, codebook, 0));
  }
}

// Two ranks with half of the rows each, their statistics added up, are one with all rows.
TEST(Quantizer, RanksThatAddUpAreOne) {
  for (const CodebookTraining training : {CodebookTraining::ema, CodebookTraining::diveq}) {
    const auto make = [&] {
      VectorQuantizer quantizer({.heads = 2, .codewords = 8, .dim = 3, .training = training, .no_use = 0.01});
      torch::manual_seed(2);
      const torch::NoGradGuard no_grad;
      quantizer.codebook.copy_(ops::l2_norm(at::randn({2, 8, 3}), 1e-12));
      return quantizer;
    };
    VectorQuantizer one = make(), first = make(), second = make();
    const torch::NoGradGuard no_grad;
    const auto end_all = [&](auto&& statistics) {
      const std::vector<Tensor> a = statistics(first, 0), b = statistics(second, 1);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        a[i].add_(b[i]);
        b[i].copy_(a[i]);
      }
      for (VectorQuantizer* quantizer : {&one, &first, &second}) quantizer->end_step();
      for (VectorQuantizer* rank : {&first, &second}) {
        EXPECT_TRUE(close(rank->codebook, one.codebook, kTolerance));
        EXPECT_TRUE(close(rank->unused, one.unused, 0));
      }
      EXPECT_TRUE(close(first.codebook, second.codebook, 0));
    };
    for (const int64_t time : {8, 16}) {  // forwards of two lengths
      const Tensor z = unit_rows({2, time, 2, 3});
      one.collect(z);
      first.collect(z.narrow(0, 0, 1));
      second.collect(z.narrow(0, 1, 1));
    }
    end_all([](VectorQuantizer& quantizer, int64_t rank) {
      return std::vector<Tensor>{quantizer.start_statistics(rank, 2)};
    });
    for (int64_t step = 0; step < 3; ++step) {
      const Tensor z = unit_rows({2, 3, 2, 3});
      one.quantize(z, 1);
      first.quantize(z.narrow(0, 0, 1), 2);
      second.quantize(z.narrow(0, 1, 1), 3);
      end_all([](VectorQuantizer& quantizer, int64_t) { return quantizer.statistics(); });
    }
  }
}

TEST(VqAttentionTraining, WarmUpThenCodebookFromKeys) {
  torch::manual_seed(7);
  VqAttention mixer({.heads = {.width = 8, .heads = 2}, .codewords = 16, .warmup = 2});
  const Tensor x = at::randn({2, 64, 8});
  const Tensor start = mixer.quantizer().codebook.detach().clone();
  for (const int64_t step : {0, 1}) {
    mixer.begin_step(step, 1);
    mixer.forward(x.narrow(0, 0, 1));
    mixer.forward(x.narrow(0, 1, 1));
    EXPECT_FALSE(mixer.auxiliary_loss().defined());
    EXPECT_TRUE(close(mixer.quantizer().codebook, start, 0));
    EXPECT_FALSE(mixer.started());
  }
  const Tensor unquantized = mixer.forward(x);
  mixer.begin_step(2, 1);
  EXPECT_TRUE(mixer.started());
  EXPECT_FALSE(close(mixer.quantizer().codebook, start, 1e-3));
  const Tensor quantized = mixer.forward(x);
  EXPECT_FALSE(close(quantized, unquantized, 1e-6));
  EXPECT_GT(mixer.quantizer().similarity(), 0.5);
  EXPECT_TRUE(close(mixer.forward(x), quantized, 0));                      // the same step and input: the same noise
  EXPECT_FALSE(close(mixer.forward(x.flip(0)).flip(0), quantized, 1e-7));  // another input
  const Tensor begun = mixer.quantizer().codebook.detach().clone();
  mixer.begin_step(3, 2);
  EXPECT_FALSE(close(mixer.forward(x), quantized, 1e-7));  // new noise
  mixer.begin_step(2, 1);
  EXPECT_TRUE(close(mixer.quantizer().codebook, begun, 0));  // it starts once
  for (const auto& item : mixer.named_parameters()) {
    mixer.zero_grad();
    EXPECT_TRUE(torch::autograd::grad({mixer.forward(x).square().sum()}, {item.value()})[0].abs().sum().item<double>() >
                0)
        << item.key();
  }
}

// Half of the codewords come from each forward of the last step of warm-up.
TEST(VqAttentionTraining, TheCodebookStartsFromAllForwardsOfAStep) {
  torch::manual_seed(8);
  VqAttention mixer({.heads = {.width = 8}, .codewords = 8, .warmup = 1});
  mixer.begin_step(0, 1);
  const Tensor x = at::randn({1, 4, 8}), y = at::randn({4, 4, 8});
  mixer.forward(x);
  mixer.forward(y);
  mixer.begin_step(1, 1);
  const Tensor words = mixer.quantizer().codewords().detach().clone();
  for (const auto& [input, first] : {std::pair{x, 0}, {y, 4}}) {
    VqAttention alone({.heads = {.width = 8}, .codewords = 4});
    const torch::NoGradGuard no_grad;
    for (const auto& item : mixer.named_parameters()) {
      if (item.key() != "quantizer.codebook") alone.named_parameters()[item.key()].copy_(item.value());
    }
    alone.forward(input);
    alone.end_step();
    EXPECT_TRUE(close(alone.quantizer().codewords(), words.narrow(1, first, 4), 1e-6));
  }
}

TEST(VqAttentionTraining, WithoutBeginStepEveryForwardIsOne) {
  torch::manual_seed(9);
  VqAttention mixer({.heads = {.width = 8}, .codewords = 64, .warmup = 2});
  const Tensor x = at::randn({1, 8, 8});
  mixer.forward(x);
  mixer.forward(x);
  EXPECT_FALSE(mixer.started());
  mixer.forward(x);
  EXPECT_TRUE(mixer.started());
  for (int64_t step = 1; step < 5; ++step) {
    mixer.forward(x);
    EXPECT_EQ(mixer.quantizer().unused.max().item<int64_t>(), step);
  }
}

TEST(VqAttentionTraining, EvaluatesUnquantizedDuringWarmUp) {
  torch::manual_seed(10);
  for (const VqForm form : {VqForm::quadratic, VqForm::linear}) {
    VqAttention mixer({.heads = {.width = 8, .heads = 2}, .codewords = 4, .chunk = 4, .form = form, .warmup = 3});
    const torch::NoGradGuard no_grad;
    for (const auto& item : mixer.named_parameters()) {
      if (item.value().dim() == 2) item.value().mul_(20);
    }
    const Tensor x = at::randn({2, 30, 8});
    mixer.begin_step(0, 1);
    const Tensor trained = mixer.forward(x);
    mixer.eval();
    EXPECT_TRUE(close(mixer.forward(x), trained, kTolerance));
    MixerState pieces, early;
    EXPECT_TRUE(close(at::cat({mixer.forward(x.slice(1, 0, 13), pieces), mixer.step(x.slice(1, 13), pieces)}, 1),
                      trained, kTolerance));
    EXPECT_EQ(pieces.position, 30);
    mixer.start();
    EXPECT_FALSE(close(mixer.forward(x), trained, 1e-3));
    EXPECT_EQ(message_of([&] { mixer.forward(x, pieces); }),
              "[vq] state is of a layer whose codebook has not started; this layer's has");
  }
}

TEST(VqAttentionTraining, NoTrainingWithAState) {
  VqAttention mixer({.heads = {.width = 8}, .codewords = 4});
  mixer.start();
  MixerState state;
  const Tensor x = at::randn({1, 3, 8});
  EXPECT_EQ(message_of([&] { mixer.forward(x, state); }),
            "[vq] training with a state: its keys would have no gradients; train without a state, or call eval()");
  mixer.step(x, state);  // decoding has no gradients anyway
  EXPECT_EQ(state.position, 3);
  mixer.eval();
  mixer.forward(x, state);
  EXPECT_EQ(state.position, 6);
}

}  // namespace
}  // namespace ovq::nn::test
