#include "ovq/train/adamw.h"

#include <cmath>

#include "ovq/base/error.h"
#include "ovq/ops/cpu_loops.h"
#include "ovq/train/adamw_update.h"

namespace ovq::train {
namespace {

constexpr int64_t kBlock = 1 << 14;

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

double AdamW::clip_gradients(double clip) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  for (const Entry& entry : entries_) {
    if (!entry.parameter.grad().defined()) continue;
    squares += std::pow(entry.parameter.grad().norm().item<double>(), 2);
  }
  const double norm = std::sqrt(squares);
  if (clip > 0 && std::isfinite(norm) && norm > clip) {
    for (Entry& entry : entries_) {
      if (entry.parameter.grad().defined()) entry.parameter.mutable_grad().mul_(clip / norm);
    }
  }
  return norm;
}

void AdamW::step(double rate) {
  ++steps_;
  const double correct1 = 1 - std::pow(options_.beta1, steps_), correct2 = 1 - std::pow(options_.beta2, steps_);
  AdamWFactors factors{.beta1 = static_cast<float>(options_.beta1),
                       .beta2 = static_cast<float>(options_.beta2),
                       .size = static_cast<float>(rate / correct1),
                       .inverse_root = static_cast<float>(1 / std::sqrt(correct2)),
                       .eps = static_cast<float>(options_.eps)};
  for (Entry& entry : entries_) {
    if (!entry.parameter.grad().defined()) continue;
    const at::Tensor gradient = entry.parameter.grad().contiguous();
    factors.keep = static_cast<float>(entry.decay ? 1 - rate * options_.weight_decay : 1.0);
    const float* g = gradient.data_ptr<float>();
    float *m = entry.m.data_ptr<float>(), *v = entry.v.data_ptr<float>(), *p = entry.parameter.data_ptr<float>();
    ops::parallel_blocks(entry.parameter.numel(), kBlock, 4, [&](int64_t begin, int64_t end) {
      adamw_update(factors, end - begin, g + begin, m + begin, v + begin, p + begin);
    });
  }
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
