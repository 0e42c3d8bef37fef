// The kernels as ops of torch's dispatcher, a forward and a backward each, with fresh tensors as results: the autograd
// functions call them there, so that torch.compile and torch.export, whose tensors have no data, record one call.
// python/ovq/_fake.py says what shapes they return.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/sizes.h"

namespace ovq::ops {

// Whether a call has to go through its autograd function: for a gradient, or to be traced.
inline bool is_recorded(at::TensorList tensors) { return needs_gradient(tensors) || is_traced(tensors); }

// A dispatched op: static const auto op = dispatched<decltype(forward)>("ovq::name_forward");
template <class Function>
auto dispatched(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

// op(arguments), without autograd: whoever calls is an autograd function.
template <class Op, class... Arguments>
auto call_dispatched(const Op& op, Arguments&&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(std::forward<Arguments>(arguments)...);
}

// For schemas, which have no undefined tensors.
inline c10::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? c10::optional<at::Tensor>(x) : c10::nullopt;
}
inline at::Tensor or_undefined(const c10::optional<at::Tensor>& x) { return x.value_or(at::Tensor()); }

// In the place of a result that is not wanted.
inline at::Tensor absent(const at::Tensor& like) { return at::empty({0}, like.options()); }

}  // namespace ovq::ops
