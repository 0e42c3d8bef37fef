#include "ovq/nn/replaced.h"

#include <algorithm>
#include <utility>

namespace ovq::nn {
namespace {

thread_local const Replaced* active_replaced = nullptr;

}  // namespace

ReplacedGuard::ReplacedGuard(const Replaced* replaced) : before_(std::exchange(active_replaced, replaced)) {}

ReplacedGuard::~ReplacedGuard() { active_replaced = before_; }

const at::Tensor& current(const at::Tensor& own) {
  if (active_replaced == nullptr || !own.defined()) return own;
  const auto at = active_replaced->tensors.find(own.unsafeGetTensorImpl());
  return at == active_replaced->tensors.end() ? own : at->second;
}

const at::Tensor& current_to_write(const char* name, const at::Tensor& own) {
  const at::Tensor& x = current(own);
  TORCH_CHECK_TYPE(x.is_leaf(), "[vq] ", name, " is computed from other parameters, and training writes into it; ",
                   "remove its parametrization first");
  return x;
}

const PartCall* call_of(const torch::nn::Module& part) {
  if (active_replaced == nullptr) return nullptr;
  const auto at = active_replaced->parts.find(&part);
  return at == active_replaced->parts.end() ? nullptr : &at->second;
}

bool any_replaced() { return active_replaced != nullptr; }

bool all_own(const std::vector<const torch::nn::Module*>& parts) {
  if (active_replaced == nullptr) return true;
  return std::all_of(parts.begin(), parts.end(),
                     [](const torch::nn::Module* part) { return part == nullptr || call_of(*part) == nullptr; });
}

}  // namespace ovq::nn
