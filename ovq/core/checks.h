// Checks of arguments, shared by the kernels: each throws std::invalid_argument that names the argument.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/core/sequences.h"
#include "ovq/core/view.h"

namespace ovq::kernels {

// A view of exactly these sizes; without data only where `optional`.
template <class T>
void check_shape(const char* op, const char* name, const View<T>& view, int64_t batch, int64_t time, int64_t heads,
                 int64_t dim, bool optional = false) {
  const bool empty = batch * time * heads * dim == 0;
  if (view.data == nullptr && (optional || empty)) return;
  check(view.data != nullptr, op, name, " is missing");
  check(view.batch == batch && view.time == time && view.heads == heads && view.dim == dim, op, name, " is [",
        view.batch, ", ", view.time, ", ", view.heads, ", ", view.dim, "]; must be [", batch, ", ", time, ", ", heads,
        ", ", dim, "]");
}

// The rows of `width` elements that `x` has.
inline int64_t check_rows(const char* op, const char* name, std::span<const float> x, int64_t width) {
  const auto size = static_cast<int64_t>(x.size());
  check(width >= 1 && size % width == 0, op, name, " has ", size, " elements; must have rows of ", width);
  return size / width;
}

inline void check_size(const char* op, const char* name, std::span<const float> x, int64_t size) {
  check(static_cast<int64_t>(x.size()) == size, op, name, " has ", x.size(), " elements; must have ", size);
}

}  // namespace ovq::kernels
