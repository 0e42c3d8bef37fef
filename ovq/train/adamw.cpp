#include "ovq/train/adamw.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ovq/base/error.h"
#include "ovq/ops/cpu_loops.h"
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

AdamW::AdamW(const torch::nn::Module& model, const AdamWOptions& options) : options_(options) {
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& p = item.value();
    if (!p.requires_grad()) continue;
    check(p.is_cpu() && p.scalar_type() == at::kFloat && p.is_contiguous(), "AdamW", item.key(),
          " must be a contiguous float tensor on the CPU");
    entries_.push_back({item.key(), p, at::zeros_like(p), at::zeros_like(p), decays(item.key(), p)});
  }
}

std::vector<AdamW::Block> AdamW::blocks() const {
  std::vector<Block> all;
  for (const Entry& entry : entries_) {
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (!gradient.is_contiguous()) gradient = gradient.contiguous();
    auto* const values = gradient.data_ptr<float>();
    for (int64_t first = 0; first < gradient.numel(); first += kBlock) {
      all.push_back({&entry, values + first, first, std::min(kBlock, gradient.numel() - first)});
    }
  }
  return all;
}

double AdamW::clip_gradients(double clip) {
  const torch::NoGradGuard no_grad;
  const std::vector<Block> all = blocks();
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
  for_all(blocks(), [&](size_t, const Block& block) {
    const Entry& entry = *block.entry;
    AdamWFactors factors = common;
    factors.keep = static_cast<float>(entry.decay ? 1 - rate * options_.weight_decay : 1.0);
    adamw_update(factors, block.count, block.gradient, entry.m.data_ptr<float>() + block.first,
                 entry.v.data_ptr<float>() + block.first, entry.parameter.data_ptr<float>() + block.first);
  });
}

void AdamW::zero_gradients() {
  for (Entry& entry : entries_) entry.parameter.mutable_grad() = at::Tensor();
}

std::map<std::string, at::Tensor> AdamW::state() const {
  std::map<std::string, at::Tensor> tensors;
  for (const Entry& entry : entries_) {
    tensors.emplace("m." + entry.name, entry.m);
    tensors.emplace("v." + entry.name, entry.v);
  }
  return tensors;
}

}  // namespace ovq::train
