// Sizes of tensors that may be symbols: what torch.compile and torch.export trace an op with has no data, and of a
// length that changes between calls no number. sizes() is an error there, sym_sizes() are numbers or symbols.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <ostream>

namespace ovq::ops {

// Whether one of them stands for a tensor without data. What needs data is left to a dispatched op (dispatched.h).
inline bool is_traced(at::TensorList tensors) {
  constexpr c10::DispatchKeySet kTracing{c10::DispatchKey::Python, c10::DispatchKey::Functionalize};
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& x) { return x.defined() && x.key_set().has_any(kTracing); });
}

inline bool is_empty(const at::Tensor& x) { return x.sym_numel() == 0; }

// As a number, which a compiled call is then made for.
inline int64_t fixed_size(const at::Tensor& x, int64_t dim) {
  return is_traced({x}) ? x.sym_size(dim).guard_int(__FILE__, __LINE__) : x.size(dim);
}

// In messages: a shape, or one size.
struct ShapeText {
  const at::Tensor& x;

  friend std::ostream& operator<<(std::ostream& out, const ShapeText& shape) {
    if (!shape.x.defined()) return out << "[]";
    return is_traced({shape.x}) ? out << shape.x.sym_sizes() : out << shape.x.sizes();
  }
};
struct SizeText {
  const at::Tensor& x;
  int64_t dim;

  friend std::ostream& operator<<(std::ostream& out, const SizeText& size) {
    return is_traced({size.x}) ? out << size.x.sym_size(size.dim) : out << size.x.size(size.dim);
  }
};

}  // namespace ovq::ops
