#include "ovq/ops/torch/once_differentiable.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>

#include "ovq/ops/torch/torch_compat.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr const char* kWayOut = "; use path=\"formula\" in Python, which can";

class SecondDerivativeError : public torch::autograd::FunctionPostHook {
 public:
  SecondDerivativeError(const char* op, const Node& node) : op_(op), node_(node) {}

  variable_list operator()(const variable_list& gradients, const variable_list& d_outputs) override {
    if (!at::GradMode::is_enabled()) return gradients;
    edge_list edges = node_.next_edges();
    for (auto& edge : torch::autograd::collect_next_edges(d_outputs)) edges.push_back(std::move(edge));
    const NodePointer error = make_node<torch::autograd::Error>(
        std::string("[") + op_ + "] the kernel's backward cannot be differentiated again" + kWayOut, std::move(edges));
    variable_list connected;
    for (const Tensor& gradient : gradients) {
      connected.push_back(gradient.defined() ? gradient.tensor_data() : Tensor());
      if (gradient.defined()) torch::autograd::create_gradient_edge(connected.back(), error);
    }
    return connected;
  }

 private:
  const char* op_;
  const Node& node_;  // which owns this
};

}  // namespace

bool has_tangents(at::TensorList tensors) {
  const bool forward_mode = torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
  return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& x) {
    if (!x.defined()) return false;
    const c10::DispatchKeySet keys = x.key_set();
    return keys.has(c10::DispatchKey::FuncTorchGradWrapper) || keys.has(c10::DispatchKey::FuncTorchBatched) ||
           (forward_mode && x._fw_grad(0).defined());
  });
}

bool needs_gradient(at::TensorList tensors) {
  const auto tracked = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  return (at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), tracked)) || has_tangents(tensors);
}

void refuse_tangents(const char* op, at::TensorList tensors) {
  TORCH_CHECK_NOT_IMPLEMENTED(!has_tangents(tensors), "[", op,
                              "] the kernel cannot be differentiated in forward mode or by torch.func", kWayOut);
}

void forbid_second_derivative(const char* op, const Tensor& output) {
  if (const auto& node = output.grad_fn()) node->add_post_hook(std::make_unique<SecondDerivativeError>(op, *node));
}

}  // namespace ovq::ops
