// Autograd functions whose backward is a kernel. It can be taken once: whatever differentiates it again, by
// create_graph, torch.autograd.functional, forward mode or torch.func, is an error that names the op, never zeros.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

namespace ovq::ops {

// Whether a tensor carries what kernels do not see: a tangent of forward-mode differentiation, or a level of
// torch.func.
bool has_tangents(at::TensorList tensors);

// Whether autograd must record an op on them (undefined ones do not count).
bool needs_gradient(at::TensorList tensors);

// NotImplementedError if one of them does.
void refuse_tangents(const char* op, at::TensorList tensors);

// From here on the gradients that output's node computes in a graph are connected to all that they depend on, by a node
// that raises an error.
void forbid_second_derivative(const char* op, const at::Tensor& output);

// T has forward(context, ...), kOp for errors, and backward_once(context, gradients) in the place of backward.
template <class T>
class OnceDifferentiable : public torch::autograd::Function<T> {
 public:
  template <class... Args>
  static auto apply(Args&&... args) {
    (refuse(args), ...);
    auto outputs = torch::autograd::Function<T>::apply(std::forward<Args>(args)...);
    if constexpr (std::is_same_v<decltype(outputs), at::Tensor>) {
      forbid_second_derivative(T::kOp, outputs);
    } else {
      forbid_second_derivative(T::kOp, outputs.front());
    }
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::NoGradGuard no_grad;
    return T::backward_once(context, std::move(gradients));
  }

 private:
  static void refuse(const at::Tensor& x) { refuse_tangents(T::kOp, x); }
  static void refuse(const c10::optional<at::Tensor>& x) {
    if (x) refuse_tangents(T::kOp, *x);
  }
  static void refuse(at::TensorList list) { refuse_tangents(T::kOp, list); }
  template <class Other>
  static void refuse(const Other&) {}
};

}  // namespace ovq::ops
