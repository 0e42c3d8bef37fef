#include "ovq/train/adamw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "ovq/base/error.h"
#include "ovq/core/parallel.h"
#include "ovq/train/adamw_update.h"

namespace ovq::train {
namespace {

constexpr int64_t kBlock = 1 << 14;

template <class Blocks, class Body>
void for_all(const Blocks& blocks, Body&& body) {
  kernels::parallel_for(static_cast<int64_t>(blocks.size()), at::get_num_threads(), [&](int64_t index, int) {
    body(static_cast<size_t>(index), blocks[static_cast<size_t>(index)]);
  });
}

}  // namespace

bool AdamW::decays(const std::string& name, const at::Tensor& parameter) {
  return parameter.dim() == 2 && (name.ends_with("_proj.weight") || name == "embed.weight" || name == "head.weight");
}

AdamW::AdamW(const torch::nn::Module& model, const AdamWOptions& options, const Shard& shard)
    : options_(options), shard_(shard) {
  check(shard.rank >= 0 && shard.rank < shard.ranks, "AdamW", "rank is ", shard.rank, "; must be within 0 and ",
        shard.ranks - 1);
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& p = item.value();
    if (!p.requires_grad()) continue;
    check(p.is_cpu() && p.scalar_type() == at::kFloat && p.is_contiguous(), "AdamW", item.key(),
          " must be a contiguous float tensor on the CPU");
    entries_.push_back({.name = item.key(), .parameter = p, .decay = decays(item.key(), p), .offset = total_});
    total_ += p.numel();
  }
  for (Entry& entry : entries_) {
    std::tie(entry.first, entry.count) = share(entry, shard.rank);
    const at::Tensor like = entry.parameter.detach();
    entry.m = shard.ranks == 1 ? at::zeros_like(like) : at::zeros({entry.count}, like.options());
    entry.v = at::zeros_like(entry.m);
  }
}

std::pair<int64_t, int64_t> AdamW::share(const Entry& entry, int64_t rank) const {
  const auto inside = [&](int64_t border) {
    return std::clamp<int64_t>(border - entry.offset, 0, entry.parameter.numel());
  };
  const int64_t first = inside(total_ * rank / shard_.ranks);
  return {first, inside(total_ * (rank + 1) / shard_.ranks) - first};
}

std::vector<AdamW::Block> AdamW::blocks(Which which) const {
  std::vector<Block> all;
  for (const Entry& entry : entries_) {
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (!gradient.is_contiguous()) gradient = gradient.contiguous();
    auto* const values = gradient.data_ptr<float>();
    const int64_t begin = which == Which::own ? entry.first : 0;
    const int64_t end = which == Which::own ? entry.first + entry.count : gradient.numel();
    for (int64_t first = begin; first < end; first += kBlock) {
      all.push_back({&entry, values + first, first, std::min(kBlock, end - first)});
    }
  }
  return all;
}

double AdamW::clip_gradients(double clip) {
  const torch::NoGradGuard no_grad;
  const std::vector<Block> all = blocks(Which::all);
  std::vector<double> squares(all.size());
  for_all(all, [&](size_t i, const Block& block) { squares[i] = sum_of_squares(block.count, block.gradient); });
  const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  if (clip > 0 && std::isfinite(norm) && norm > clip) {
    const auto factor = static_cast<float>(clip / norm);
    for_all(all, [&](size_t, const Block& block) { scale(factor, block.count, block.gradient); });
  }
  return norm;
}

void AdamW::step(double rate) {
  ++steps_;
  const torch::NoGradGuard no_grad;
  const double correct1 = 1 - std::pow(options_.beta1, steps_), correct2 = 1 - std::pow(options_.beta2, steps_);
  const AdamWFactors common{.beta1 = static_cast<float>(options_.beta1),
                            .beta2 = static_cast<float>(options_.beta2),
                            .size = static_cast<float>(rate / correct1),
                            .inverse_root = static_cast<float>(1 / std::sqrt(correct2)),
                            .eps = static_cast<float>(options_.eps)};
  for_all(blocks(Which::own), [&](size_t, const Block& block) {
    const Entry& entry = *block.entry;
    AdamWFactors factors = common;
    factors.shrinkage = static_cast<float>(entry.decay ? 1 - rate * options_.weight_decay : 1.0);
    const int64_t at = block.first - entry.first;
    adamw_update(factors, block.count, block.gradient, entry.m.data_ptr<float>() + at, entry.v.data_ptr<float>() + at,
                 entry.parameter.data_ptr<float>() + block.first);
  });
}

void AdamW::zero_gradients() {
  for (Entry& entry : entries_) entry.parameter.mutable_grad() = at::Tensor();
}

std::map<std::string, at::Tensor> AdamW::state() const {
  std::map<std::string, at::Tensor> tensors;
  for (const Entry& entry : entries_) {
    const auto whole = [&](const at::Tensor& own) {
      if (shard_.ranks == 1) return own;
      at::Tensor made = at::zeros_like(entry.parameter.detach());
      made.view(-1).narrow(0, entry.first, entry.count).copy_(own);
      return made;
    };
    tensors.emplace("m." + entry.name, whole(entry.m));
    tensors.emplace("v." + entry.name, whole(entry.v));
  }
  return tensors;
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += static_cast<int64_t>(entry.m.nbytes() + entry.v.nbytes());
  return bytes;
}

std::vector<AdamW::ParameterShard> AdamW::parameter_shards() const {
  std::vector<ParameterShard> all;
  for (const Entry& entry : entries_) {
    for (int64_t rank = 0; rank < shard_.ranks; ++rank) {
      const auto [first, count] = share(entry, rank);
      if (count == 0) continue;
      ParameterShard& shard =
          all.emplace_back(ParameterShard{.name = entry.name,
                                          .parameter = entry.parameter.detach().view(-1).narrow(0, first, count),
                                          .rank = rank,
                                          .first = first});
      if (rank == shard_.rank) {
        shard.m = entry.m.view(-1);
        shard.v = entry.v.view(-1);
      }
    }
  }
  return all;
}

}  // namespace ovq::train
