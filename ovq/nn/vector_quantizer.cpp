#include "ovq/nn/vector_quantizer.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/ops/norm/torch.h"

namespace ovq::nn {
namespace {

using at::Tensor;

ops::QuantizerGradient gradient_of(CodebookTraining training) {
  switch (training) {
    case CodebookTraining::ema:
      return ops::QuantizerGradient::straight_through;
    case CodebookTraining::diveq:
      return ops::QuantizerGradient::diveq;
    case CodebookTraining::sf_diveq:
      break;
  }
  return ops::QuantizerGradient::sf_diveq;
}

// Means of `count` consecutive blocks of z [H, M, D] -> [H, count, D]. With fewer rows than blocks, blocks share rows.
Tensor block_means(const Tensor& z, int64_t count) {
  const int64_t rows = z.size(1);
  std::vector<Tensor> means;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * rows / count, end = std::max(begin + 1, (i + 1) * rows / count);
    means.push_back(z.narrow(1, begin, end - begin).mean(1));
  }
  return at::stack(means, 1);
}

// Sets `sum` to zeros in the shape of `like` if it is undefined.
void make_zeros(Tensor& sum, const Tensor& like) {
  if (!sum.defined()) sum = at::zeros_like(like).detach();
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
  codebook = register_parameter("codebook", ops::l2_norm(at::randn(shape)), learned);
  unused = register_buffer("unused", at::zeros({options.heads, options.codewords}, at::kLong));
  if (!learned) {
    ema_counts = register_buffer("ema_counts", at::ones({options.heads, options.codewords}));
    ema_sums = register_buffer("ema_sums", codebook.detach().clone());
  }
}

Tensor VectorQuantizer::codewords() const { return ops::l2_norm(codebook, 1e-12); }

Tensor VectorQuantizer::nearest(const Tensor& z) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor rows = ops::by_head(z.detach().to(codebook.scalar_type()));
  return ops::by_token(ops::nearest_codeword(rows, codewords().detach()), z.size(0), z.size(1));
}

int64_t VectorQuantizer::dead(int64_t steps) const { return unused.ge(steps).sum().item<int64_t>(); }

void VectorQuantizer::note(const Tensor& z, const Tensor& words, const ops::VectorQuantized& quantized) {
  if (z.is_meta()) return;  // there is nothing to learn from
  const torch::NoGradGuard no_grad;
  const bool segments = options_.training == CodebookTraining::sf_diveq;
  const Tensor used = segments ? at::cat({quantized.index, quantized.index + 1}, 1) : quantized.index;
  make_zeros(used_, codebook.select(-1, 0));
  used_.scatter_add_(1, used, at::ones_like(used, used_.options()));
  const Tensor nearest = segments ? ops::gather_rows(words, ops::nearest_codeword(z, words)) : quantized.codeword;
  similarity_ = (z.detach() * nearest.detach()).sum(-1).mean().item<double>();
  if (options_.training == CodebookTraining::ema) {
    make_zeros(sums_, codebook);
    sums_.scatter_add_(1, quantized.index.unsqueeze(-1).expand_as(z), z.detach());
  }
}

Tensor VectorQuantizer::quantize(const Tensor& z_tokens, uint64_t seed, Note noted) {
  // In the codebook's precision, also under autocast: eight bits are too few to decide which codeword is nearest.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor z = ops::by_head(z_tokens.to(codebook.scalar_type())), words = codewords();
  const ops::VectorQuantized quantized = ops::vector_quantize({.z = z,
                                                               .codewords = words,
                                                               .bonus = unused.to(z.scalar_type()) * options_.no_use,
                                                               .gradient = gradient_of(options_.training),
                                                               .noise = options_.noise,
                                                               .seed = seed});
  if (options_.training == CodebookTraining::ema) {
    const Tensor distance = (z - quantized.codeword.detach()).square().sum(-1).sum(0);
    commitment_ = options_.commitment * distance.sum() / std::max<int64_t>(1, z.size(1));  // 0 without tokens
  }
  if (noted == Note::yes) note(z, words, quantized);
  return ops::by_token(quantized.z_q, z_tokens.size(0), z_tokens.size(1)).to(z_tokens.scalar_type());
}

void VectorQuantizer::collect(const Tensor& z_tokens) {
  const torch::NoGradGuard no_grad;
  const Tensor z = ops::by_head(z_tokens.detach().to(codebook.scalar_type()));
  if (z.size(1) > 0) collected_.push_back(block_means(z, std::min(options_.codewords, z.size(1))));
}

std::vector<Tensor> VectorQuantizer::statistics() {
  make_zeros(used_, codebook.select(-1, 0));
  if (!ema_sums.defined()) return {used_};
  make_zeros(sums_, codebook);
  return {used_, sums_};
}

// Divides the codewords among the forwards, and those of a forward among the ranks. This is the order in which a single
// rank would see all rows if all ranks have equally many forwards and one part of the batch each. Otherwise it is as
// good a start, except that some codewords may stay random or lie close to two keys.
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
  if (codebook.is_meta()) drop_step();
  if (!start_.defined() && !collected_.empty()) start_statistics(0, 1);
  // A codeword without keys keeps its random initial value.
  const Tensor found = start_.defined() ? start_.norm(2, -1, true).gt(0) : Tensor();
  const bool starts = found.defined() && found.any().item<bool>();
  if (starts) {
    codebook.copy_(ops::l2_norm(at::where(found, start_, codebook), 1e-12));
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
      // An average without recent keys means nothing: a codeword that was unused for long keeps its value.
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
