#include "ovq/models/parts.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <nlohmann/json.hpp>

#include "ovq/nn/gated_mlp.h"
#include "ovq/nn/rms_norm.h"
#include "ovq/nn/short_convolution.h"

namespace ovq::models {
namespace {

using at::Tensor;

Tensor call_python_part(int64_t key, const Tensor& x, const Tensor& before, const c10::optional<Tensor>& cu_seqlens) {
  using Call = Tensor(int64_t, const Tensor&, const c10::optional<Tensor>&, const c10::optional<Tensor>&);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("ovq_python::call_part", "").typed<Call>();
  return op.call(key, x, before.defined() ? c10::optional<Tensor>(before) : c10::nullopt, cu_seqlens);
}

nlohmann::json described(const torch::nn::Module& part) {
  if (dynamic_cast<const nn::ProjectionImpl*>(&part)) return {{"kind", "linear"}};
  if (dynamic_cast<const nn::TokenEmbeddingImpl*>(&part)) return {{"kind", "embedding"}};
  if (dynamic_cast<const nn::GatedMlpImpl*>(&part)) return {{"kind", "gated_mlp"}};
  if (dynamic_cast<const torch::nn::ModuleListImpl*>(&part)) return {{"kind", "list"}};
  if (const auto* norm = dynamic_cast<const nn::RMSNormImpl*>(&part))
    return {{"kind", "rms_norm"}, {"eps", norm->eps()}, {"groups", norm->groups()}};
  if (const auto* convolution = dynamic_cast<const nn::ShortConvolutionImpl*>(&part)) {
    return {{"kind", "short_convolution"}, {"silu", convolution->options().activation == nn::Activation::silu}};
  }
  return {{"kind", ""}};
}

}  // namespace

PartNames::PartNames(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) tensors_.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors_.emplace(item.key(), item.value());
  // The children of a const module: shared_from_this, which named_modules needs, is not.
  const std::function<void(const torch::nn::Module&, const std::string&)> collect = [&](const torch::nn::Module& from,
                                                                                        const std::string& prefix) {
    for (const auto& child : from.named_children()) {
      order_.emplace_back(prefix + child.key(), child.value().get());
      collect(*child.value(), prefix + child.key() + ".");
    }
  };
  collect(module, "");
  parts_.insert(order_.begin(), order_.end());
}

nlohmann::json PartNames::describe() const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [name, part] : order_) {
    all.push_back(described(*part));
    all.back()["name"] = name;
  }
  return all;
}

nn::Replaced PartNames::resolve(const ReplacedParts& replaced) const {
  nn::Replaced result;
  for (const auto& item : replaced.tensors) {
    result.tensors.emplace(tensors_.at(item.key()).unsafeGetTensorImpl(), item.value());
  }
  for (const auto& item : replaced.keys) {
    const int64_t key = item.value();
    result.parts.emplace(parts_.at(item.key()),
                         [key](const Tensor& x, const Tensor& before, const c10::optional<Tensor>& cu_seqlens) {
                           return call_python_part(key, x, before, cu_seqlens);
                         });
  }
  return result;
}

}  // namespace ovq::models
