#include "ovq/nn/vector_quantizer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "ovq/base/error.h"
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

// Means of `count` consecutive blocks of z [H, M, D] -> [H, count, D]. With fewer rows than blocks, rows stand in
// several.
Tensor block_means(const Tensor& z, int64_t count) {
  const int64_t rows = z.size(1);
  std::vector<Tensor> means;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * rows / count, end = std::max(begin + 1, (i + 1) * rows / count);
    means.push_back(z.narrow(1, begin, end - begin).mean(1));
  }
  return at::stack(means, 1);
}

// Zeros of the shape of `like`, unless there is something already.
void make_zeros(Tensor& sum, const Tensor& like) {
  if (!sum.defined()) sum = at::zeros_like(like).detach();
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
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return by_token(best_match(by_head(z.detach().to(codebook.scalar_type())), codewords().detach(), {}), z);
}

int64_t VectorQuantizer::dead(int64_t steps) const { return current(unused).ge(steps).sum().item<int64_t>(); }

void VectorQuantizer::note_use(const Tensor& index) {
  make_zeros(used_, codebook.select(-1, 0));
  used_.scatter_add_(1, index, at::ones_like(index, used_.options()));
}

void VectorQuantizer::note_similarity(const Tensor& z, const Tensor& c) {
  similarity_ = (z.detach() * c.detach()).sum(-1).mean().item<double>();
}

Tensor VectorQuantizer::quantize(const Tensor& z_tokens, uint64_t seed, Note note) {
  // In the codebook's precision, also under autocast: which codeword is nearest is no matter for eight bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor z = by_head(z_tokens.to(codebook.scalar_type()));
  Tensor quantized;
  switch (options_.training) {
    case CodebookTraining::ema:
      quantized = quantize_ema(z, note);
      break;
    case CodebookTraining::diveq:
      quantized = quantize_diveq(z, seed, note);
      break;
    case CodebookTraining::sf_diveq:
      quantized = quantize_sf_diveq(z, seed, note);
      break;
  }
  return by_token(quantized, z_tokens).to(z_tokens.scalar_type());
}

Tensor VectorQuantizer::quantize_ema(const Tensor& z, Note note) {
  const Tensor bonus = current(unused).to(z.scalar_type()) * options_.no_use;
  const Tensor index = best_match(z, codewords(), bonus);
  const Tensor c = gather_rows(codewords(), index);
  commitment_ = options_.commitment * (z - c.detach()).square().sum(-1).sum(0).mean();
  if (note == Note::yes) {
    const torch::NoGradGuard no_grad;
    current_to_write("quantizer.codebook", codebook);  // an error now, not at the step's end, if it cannot be
    note_use(index);
    note_similarity(z, c);
    make_zeros(sums_, codebook);
    sums_.scatter_add_(1, index.unsqueeze(-1).expand_as(z), z.detach());
  }
  return z + (c - z).detach();
}

Tensor VectorQuantizer::quantize_diveq(const Tensor& z, uint64_t seed, Note note) {
  const Tensor words = codewords();
  const Tensor index = best_match(z, words, current(unused).to(z.scalar_type()) * options_.no_use);
  const Tensor c = gather_rows(words, index);
  if (note == Note::yes) {
    note_use(index);
    note_similarity(z, c);
  }
  const Tensor noise = at::randn(z.sizes(), generator_of(seed), z.options()) * options_.noise;
  return z + towards(z, c, noise);
}

Tensor VectorQuantizer::quantize_sf_diveq(const Tensor& z, uint64_t seed, Note note) {
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
    if (note == Note::yes) {
      note_use(at::cat({index, index + 1}, 1));
      note_similarity(z, gather_rows(words, best_match(z, words, {})));
    }
  }
  const Tensor a = gather_rows(words, index), b = gather_rows(words, index + 1);
  const Tensor l = gather_rows(share, index);
  const Tensor noise_a = at::randn(z.sizes(), generator, z.options()) * options_.noise;
  const Tensor noise_b = at::randn(z.sizes(), generator, z.options()) * options_.noise;
  return z + (1 - l) * towards(z, a, noise_a) + l * towards(z, b, noise_b);
}

void VectorQuantizer::collect(const Tensor& z_tokens) {
  const torch::NoGradGuard no_grad;
  current_to_write("quantizer.codebook", codebook);  // an error now, not at the step's end, if it cannot be
  const Tensor z = by_head(z_tokens.detach().to(codebook.scalar_type()));
  if (z.size(1) > 0) collected_.push_back(block_means(z, std::min(options_.codewords, z.size(1))));
}

std::vector<Tensor> VectorQuantizer::statistics() {
  make_zeros(used_, codebook.select(-1, 0));
  if (!ema_sums.defined()) return {used_};
  make_zeros(sums_, codebook);
  return {used_, sums_};
}

// The codewords are shared out among the forwards, and those of a forward among the ranks: the order in which one rank
// would see the rows of all.
Tensor VectorQuantizer::start_statistics(int64_t rank, int64_t ranks) {
  const torch::NoGradGuard no_grad;
  start_ = at::zeros_like(codebook).detach();
  const auto forwards = static_cast<int64_t>(collected_.size());
  for (int64_t forward = 0; forward < forwards; ++forward) {
    const int64_t first = forward * options_.codewords / forwards;
    const int64_t count = (forward + 1) * options_.codewords / forwards - first;
    const int64_t begin = first + rank * count / ranks, end = first + (rank + 1) * count / ranks;
    if (end == begin) continue;
    start_.slice(1, begin, end).copy_(block_means(collected_[static_cast<size_t>(forward)], end - begin));
  }
  return start_;
}

bool VectorQuantizer::end_step() {
  const torch::NoGradGuard no_grad;
  if (this->codebook.is_meta()) drop_step();
  const Tensor codebook = current(this->codebook), unused = current(this->unused);
  const Tensor ema_counts = current(this->ema_counts), ema_sums = current(this->ema_sums);
  if (!start_.defined() && !collected_.empty()) start_statistics(0, 1);
  // A codeword that no key fell to keeps its random start.
  const Tensor found = start_.defined() ? start_.norm(2, -1, true).gt(0) : Tensor();
  const bool starts = found.defined() && found.any().item<bool>();
  if (starts) {
    codebook.copy_(l2n(at::where(found, start_, codebook), 1e-12));
    unused.zero_();
    if (ema_sums.defined()) {
      ema_counts.fill_(1);
      ema_sums.copy_(codebook);
    }
  } else if (used_.defined() && used_.gt(0).any().item<bool>()) {
    unused.copy_((unused + 1) * used_.eq(0));
    if (ema_sums.defined()) {
      const double keep = options_.ema_decay;
      ema_counts.mul_(keep).add_(used_, 1 - keep);
      ema_sums.mul_(keep).add_(sums_, 1 - keep);
      // Averages of nothing say nothing: a codeword that has not been used for long stays where it was.
      const Tensor means = ema_sums / ema_counts.clamp_min(1e-5).unsqueeze(-1);
      codebook.copy_(at::where(ema_counts.unsqueeze(-1) > 1e-5, means, codebook));
    }
  }
  drop_step();
  return starts;
}

void VectorQuantizer::drop_step() {
  used_ = sums_ = start_ = Tensor();
  collected_.clear();
}

}  // namespace ovq::nn
