#include "ovq/nn/vector_quantizer.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "ovq/kernels/error.h"
#include "ovq/nn/replaced.h"
#include "ovq/nn/rms_norm.h"

namespace ovq::nn {
namespace {

using at::Tensor;

constexpr int64_t kScoresAtOnce = int64_t{1} << 24;

// [B, T, H, D] -> [H, B T, D]
Tensor by_head(const Tensor& z) { return z.permute({2, 0, 1, 3}).reshape({z.size(2), -1, z.size(3)}); }

// [H, B T, ...] -> [B, T, H, ...] in the shape of z
Tensor by_token(const Tensor& x, const Tensor& z) {
  std::vector<int64_t> shape = {z.size(2), z.size(0), z.size(1)};
  std::vector<int64_t> order = {1, 2, 0};
  for (int64_t i = 2; i < x.dim(); ++i) {
    shape.push_back(x.size(i));
    order.push_back(i + 1);
  }
  return x.view(shape).permute(order);
}

// argmax over j of z . c_j + bias_j: z [H, M, D], c [H, K, D], bias [H, K] or undefined -> [H, M]
Tensor best_match(const Tensor& z, const Tensor& c, const Tensor& bias) {
  const torch::NoGradGuard no_grad;
  const int64_t rows = std::max<int64_t>(1, kScoresAtOnce / std::max<int64_t>(1, c.size(0) * c.size(1)));
  std::vector<Tensor> parts;
  for (int64_t first = 0; first < z.size(1); first += rows) {
    const Tensor piece = z.narrow(1, first, std::min(rows, z.size(1) - first));
    Tensor scores = at::bmm(piece, c.transpose(1, 2));
    if (bias.defined()) scores.add_(bias.unsqueeze(1));
    parts.push_back(scores.argmax(-1));
  }
  return parts.empty() ? at::empty({z.size(0), 0}, z.options().dtype(at::kLong)) : at::cat(parts, 1);
}

// rows index [H, M] of c [H, K, D] -> [H, M, D]
Tensor gather_rows(const Tensor& c, const Tensor& index) {
  return c.gather(1, index.unsqueeze(-1).expand({-1, -1, c.size(2)}));
}

at::Generator generator_of(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// z + weight |c - z| u: the gradient goes through the distance alone
Tensor towards(const Tensor& z, const Tensor& c, const Tensor& noise) {
  const Tensor delta = c - z;
  Tensor u;
  {
    const torch::NoGradGuard no_grad;
    const Tensor noisy = delta + noise;
    u = noisy / noisy.norm(2, -1, true).clamp_min(1e-30);
  }
  return delta.norm(2, -1, true) * u;
}

}  // namespace

VectorQuantizer::VectorQuantizer(const QuantizerOptions& options) : options_(options) {
  using kernels::check;
  check(options.codewords >= 2, "vq", "codewords is ", options.codewords, "; must be at least 2");
  check(options.heads >= 1 && options.dim >= 1, "vq", "heads and dim are ", options.heads, " and ", options.dim,
        "; must be at least 1");
  check(options.no_use >= 0, "vq", "no_use is ", options.no_use, "; must be at least 0");
  check(options.noise >= 0, "vq", "noise is ", options.noise, "; must be at least 0");
  check(options.ema_decay > 0 && options.ema_decay < 1, "vq", "ema_decay is ", options.ema_decay,
        "; must be between 0 and 1");
  check(options.commitment >= 0, "vq", "commitment is ", options.commitment, "; must be at least 0");
  const std::vector<int64_t> shape = {options.heads, options.codewords, options.dim};
  const bool learned = options.training != CodebookTraining::ema;
  codebook = register_parameter("codebook", l2n(at::randn(shape)), learned);
  unused = register_buffer("unused", at::zeros({options.heads, options.codewords}, at::kLong));
  if (!learned) {
    ema_counts = register_buffer("ema_counts", at::ones({options.heads, options.codewords}));
    ema_sums = register_buffer("ema_sums", codebook.detach().clone());
  }
}

Tensor VectorQuantizer::codewords() const { return l2n(current(codebook), 1e-12); }

Tensor VectorQuantizer::nearest(const Tensor& z) const {
  return by_token(best_match(by_head(z.detach()), codewords().detach(), {}), z);
}

int64_t VectorQuantizer::dead(int64_t steps) const { return current(unused).ge(steps).sum().item<int64_t>(); }

void VectorQuantizer::note_use(const Tensor& index) {
  const Tensor unused = current(this->unused);
  const Tensor used = at::zeros_like(unused).scatter_(1, index, 1);
  unused.copy_((unused + 1) * (1 - used));
}

void VectorQuantizer::note_similarity(const Tensor& z, const Tensor& c) {
  similarity_ = (z.detach() * c.detach()).sum(-1).mean().item<double>();
}

Tensor VectorQuantizer::quantize(const Tensor& z_tokens, uint64_t seed) {
  const Tensor z = by_head(z_tokens);
  switch (options_.training) {
    case CodebookTraining::ema:
      return by_token(quantize_ema(z), z_tokens);
    case CodebookTraining::diveq:
      return by_token(quantize_diveq(z, seed), z_tokens);
    case CodebookTraining::sf_diveq:
      return by_token(quantize_sf_diveq(z, seed), z_tokens);
  }
  return {};
}

Tensor VectorQuantizer::quantize_ema(const Tensor& z) {
  const Tensor bonus = current(unused).to(z.scalar_type()) * options_.no_use;
  const Tensor index = best_match(z, codewords(), bonus);
  const Tensor c = gather_rows(codewords(), index);
  const Tensor quantized = z + (c - z).detach();
  commitment_ = options_.commitment * (z - c.detach()).square().sum(-1).mean();
  const torch::NoGradGuard no_grad;
  note_use(index);
  note_similarity(z, c);
  const double keep = options_.ema_decay;
  const Tensor codebook = current_to_write("quantizer.codebook", this->codebook);
  const Tensor ema_counts = current(this->ema_counts), ema_sums = current(this->ema_sums);
  const Tensor ones = at::ones_like(index, z.options());
  ema_counts.mul_(keep).add_(at::zeros_like(ema_counts).scatter_add_(1, index, ones), 1 - keep);
  const Tensor sums = at::zeros_like(ema_sums).scatter_add_(1, index.unsqueeze(-1).expand_as(z), z);
  ema_sums.mul_(keep).add_(sums, 1 - keep);
  // Averages of nothing say nothing: a codeword that has not been used for long stays where it was.
  const Tensor means = ema_sums / ema_counts.clamp_min(1e-5).unsqueeze(-1);
  codebook.copy_(at::where(ema_counts.unsqueeze(-1) > 1e-5, means, codebook));
  return quantized;
}

Tensor VectorQuantizer::quantize_diveq(const Tensor& z, uint64_t seed) {
  const Tensor words = codewords();
  const Tensor index = best_match(z, words, current(unused).to(z.scalar_type()) * options_.no_use);
  const Tensor c = gather_rows(words, index);
  note_use(index);
  note_similarity(z, c);
  const Tensor noise = at::randn(z.sizes(), generator_of(seed), z.options()) * options_.noise;
  return z + towards(z, c, noise);
}

Tensor VectorQuantizer::quantize_sf_diveq(const Tensor& z, uint64_t seed) {
  at::Generator generator = generator_of(seed);
  const Tensor words = codewords();
  const int64_t segments = options_.codewords - 1;
  const Tensor unused = current(this->unused);
  const Tensor share = at::rand({options_.heads, segments, 1}, generator, z.options());
  const Tensor first = words.narrow(1, 0, segments), second = words.narrow(1, 1, segments);
  Tensor index;
  {
    const torch::NoGradGuard no_grad;
    const Tensor points = (1 - share) * first + share * second;
    const Tensor idle = at::maximum(unused.narrow(1, 0, segments), unused.narrow(1, 1, segments));
    // |z - d|^2 is smallest where z . d - |d|^2 / 2 is largest; the bonus counts as similarity
    index = best_match(z, points, idle.to(z.scalar_type()) * options_.no_use - points.square().sum(-1) / 2);
    note_use(at::cat({index, index + 1}, 1));
    note_similarity(z, gather_rows(words, best_match(z, words, {})));
  }
  const Tensor a = gather_rows(words, index), b = gather_rows(words, index + 1);
  const Tensor l = gather_rows(share, index);
  const Tensor noise_a = at::randn(z.sizes(), generator, z.options()) * options_.noise;
  const Tensor noise_b = at::randn(z.sizes(), generator, z.options()) * options_.noise;
  return z + (1 - l) * towards(z, a, noise_a) + l * towards(z, b, noise_b);
}

void VectorQuantizer::start_from(const Tensor& z_tokens) {
  const torch::NoGradGuard no_grad;
  const Tensor z = by_head(z_tokens.detach());
  const int64_t tokens = z.size(1), count = options_.codewords;
  if (tokens == 0) return;
  const Tensor codebook = current_to_write("quantizer.codebook", this->codebook), unused = current(this->unused);
  const Tensor ema_counts = current(this->ema_counts), ema_sums = current(this->ema_sums);
  std::vector<Tensor> means;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * tokens / count, end = std::max(begin + 1, (i + 1) * tokens / count);
    means.push_back(z.narrow(1, begin, end - begin).mean(1));
  }
  codebook.copy_(l2n(at::stack(means, 1), 1e-12));
  unused.zero_();
  if (ema_sums.defined()) {
    ema_counts.fill_(1);
    ema_sums.copy_(codebook);
  }
}

}  // namespace ovq::nn
