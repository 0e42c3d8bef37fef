#include "ovq/ops/products/torch_stored.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/ops/products/matvec.h"
#include "ovq/ops/products/products.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/once_differentiable.h"

namespace ovq::ops {
namespace {

using at::Tensor;

constexpr int64_t kWidenedElements =
    int64_t{1} << 22;  // of bfloat16 at a time; the last cache may hold them. A quarter of it is 7 % slower

bool narrow(const Tensor& weight) { return weight.scalar_type() == at::kBFloat16; }

// Rows of an expanded or unfolded weight overlap: the kernels would read past its end.
bool rows_contiguous(const Tensor& x) {
  return (x.size(1) <= 1 || x.stride(1) == 1) && (x.size(0) <= 1 || x.stride(0) >= x.size(1));
}

const kernels::Bfloat16* narrow_data(const Tensor& weight) {
  return reinterpret_cast<const kernels::Bfloat16*>(weight.data_ptr<at::BFloat16>());
}

kernels::StoredMatrix stored_matrix(const Tensor& weight) {
  kernels::StoredMatrix matrix{.outputs = weight.size(0), .stride = std::max(weight.stride(0), weight.size(1))};
  if (narrow(weight))
    matrix.narrow = narrow_data(weight);
  else
    matrix.wide = weight.data_ptr<float>();
  return matrix;
}

using Matrices = c10::SmallVector<kernels::StoredMatrix, 4>;

Tensor few_rows_times(const Tensor& x, at::TensorList weights, const Tensor& add, bool gated) {
  RECORD_USER_SCOPE("ovq::matvec");
  use_torch_threads();
  Matrices matrices;
  int64_t outputs = 0;
  for (const Tensor& weight : weights) {
    matrices.push_back(stored_matrix(weight));
    outputs += weight.size(0);
  }
  const int64_t columns = gated ? outputs / 2 : outputs;
  const Tensor y = at::empty({x.size(0), columns}, x.options());
  kernels::matvec({.x = x.data_ptr<float>(),
                   .x_stride = x.stride(0),
                   .rows = x.size(0),
                   .depth = x.size(1),
                   .weights = {matrices.data(), matrices.size()},
                   .add = add.defined() ? add.data_ptr<float>() : nullptr,
                   .add_stride = add.defined() ? add.stride(0) : 0,
                   .gated = gated},
                  y.data_ptr<float>(), columns);
  return y;
}

// y <- x w^T + add
void multiply(const Tensor& x, const Tensor& weight, const Tensor& add, Tensor y) {
  if (!narrow(weight)) return rows_times_transposed_into(x, weight, add, y);
  const int64_t outputs = weight.size(0), depth = weight.size(1);
  const int64_t step = std::min(outputs, std::max<int64_t>(64, kWidenedElements / std::max<int64_t>(1, depth)));
  const Tensor wide = at::empty({step, depth}, x.options());
  use_torch_threads();
  for (int64_t first = 0; first < outputs; first += step) {
    const int64_t count = std::min(step, outputs - first);
    const Tensor block = wide.narrow(0, 0, count);
    kernels::widen(narrow_data(weight) + first * weight.stride(0), count, depth, weight.stride(0), span_of(block));
    rows_times_transposed_into(x, block, add.defined() ? add.narrow(1, first, count) : add, y.narrow(1, first, count));
  }
}

bool few_rows(int64_t rows) { return rows <= kernels::kFewRowsAtMost; }

}  // namespace

void check_inference(const char* op, const Tensor& x, at::TensorList weights) {
  if (x.scalar_type() == at::kBFloat16 || !std::any_of(weights.begin(), weights.end(), narrow)) return;
  check(!needs_gradient({x}) && !needs_gradient(weights), op,
        "the weights are bfloat16, which is for inference; must be float32 for gradients, or without them "
        "(torch.no_grad)");
}

Tensor stored_weight(const char* op, const Tensor& weight) {
  if (weight.is_cpu() && (weight.scalar_type() == at::kFloat || narrow(weight))) return weight;
  check_has_kernels(op, "weight", weight);
  return weight.to(at::kFloat);
}

Tensor trained_weight(const char* op, const Tensor& weight) {
  const Tensor stored = stored_weight(op, weight);
  return narrow(stored) ? stored.to(at::kFloat) : stored;
}

Tensor rows_times_stored(const Tensor& x, at::TensorList weights, const Tensor& add) {
  const bool in_order = std::all_of(weights.begin(), weights.end(), rows_contiguous);
  if (few_rows(x.size(0)) && in_order) return few_rows_times(x, weights, add, false);
  int64_t outputs = 0;
  for (const Tensor& weight : weights) outputs += weight.size(0);
  const Tensor y = at::empty({x.size(0), outputs}, x.options());
  int64_t first = 0;
  for (const Tensor& any : weights) {
    const Tensor weight = narrow(any) && !rows_contiguous(any) ? any.contiguous() : any;
    multiply(x, weight, add.defined() ? add.narrow(1, first, weight.size(0)) : add, y.narrow(1, first, weight.size(0)));
    first += weight.size(0);
  }
  return y;
}

Tensor few_rows_gated(const Tensor& x, const Tensor& gate, const Tensor& up) {
  if (!few_rows(x.size(0)) || !rows_contiguous(gate) || !rows_contiguous(up)) return {};
  return few_rows_times(x, {gate, up}, {}, true);
}

}  // namespace ovq::ops
