// Test tensors as spans and as matrices of the plain loops.
#pragma once

#include <span>

#include "ovq/core/reference_matrix.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"

namespace ovq::kernels::test {

// Of a dense tensor
inline std::span<float> span(const Tensor& x) {
  const View<float> view = x.view();
  return {view.data, static_cast<size_t>(view.batch * view.time * view.heads * view.dim)};
}

// [T, D] of one sequence and one head
template <class Scalar>
reference::Matrix<Scalar> matrix(const Tensor& x, int64_t batch = 0) {
  return reference::load<Scalar>(View<const float>(x.view()), batch, 0, 0, x.view().time);
}

}  // namespace ovq::kernels::test
