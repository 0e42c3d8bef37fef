// The tensors and parts of a module by name, as Python sees them and may replace them for a call.
#pragma once

#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ovq/nn/replaced.h"

namespace ovq::models {

// What Python put in place: tensors by name, and by the name of a part the key that the operator
// ovq_python::call_part (defined in Python) knows its callable by.
struct ReplacedParts : torch::CustomClassHolder {
  using Tensors = c10::Dict<std::string, at::Tensor>;
  using Keys = c10::Dict<std::string, int64_t>;
  ReplacedParts(Tensors tensors, Keys keys) : tensors(std::move(tensors)), keys(std::move(keys)) {}
  Tensors tensors;
  Keys keys;
};
using ReplacedPtr = c10::optional<c10::intrusive_ptr<ReplacedParts>>;

// A module's names, looked up once. The module must outlive it.
class PartNames {
 public:
  explicit PartNames(const torch::nn::Module& module);

  // In the order of the module, parents first: {"name": ..., "kind": "linear" | "embedding" | "rms_norm" | "gated_mlp"
  // | "short_convolution" | "list" | "", options}; those of no kind are not called as y = f(x) and cannot be replaced.
  nlohmann::json describe() const;

  nn::Replaced resolve(const ReplacedParts& replaced) const;

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::vector<std::pair<std::string, const torch::nn::Module*>> order_;
  std::map<std::string, const torch::nn::Module*> parts_;
};

}  // namespace ovq::models
