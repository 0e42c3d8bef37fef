// Tensors as the matrices of the plain loops, and back.
#pragma once

#include <algorithm>
#include <vector>

#include "ovq/core/reference_matrix.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::ops::test {

template <class Scalar>
inline constexpr at::ScalarType kTypeOf = c10::CppTypeToScalarType<Scalar>::value;

// x [rows, columns]
template <class Scalar>
kernels::reference::Matrix<Scalar> matrix_of(const at::Tensor& x) {
  const at::Tensor dense = x.detach().to(kTypeOf<Scalar>).contiguous();
  kernels::reference::Matrix<Scalar> matrix(x.size(0), x.size(1));
  std::copy_n(dense.data_ptr<Scalar>(), dense.numel(), matrix.data.begin());
  return matrix;
}

// x [n]
template <class Scalar>
std::vector<Scalar> vector_of(const at::Tensor& x) {
  return matrix_of<Scalar>(x.unsqueeze(0)).data;
}

template <class Scalar>
at::Tensor tensor_of(const kernels::reference::Matrix<Scalar>& matrix) {
  return at::tensor(matrix.data, kTypeOf<Scalar>).view({matrix.rows, matrix.columns});
}

template <class Scalar>
at::Tensor tensor_of(const std::vector<Scalar>& values) {
  return at::tensor(values, kTypeOf<Scalar>);
}

}  // namespace ovq::ops::test
