#include "ovq/ops/products/torch_stored.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/ops/products/matvec.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/torch/backend.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/torch_compat.h"

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
  const auto& kernels = kernels::detail::row_kernels();
  for (int64_t first = 0; first < outputs; first += step) {
    const int64_t count = std::min(step, outputs - first);
    parallel_blocks(count, 16, depth, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels.widen(narrow_data(weight) + (first + row) * weight.stride(0), depth,
                      wide.data_ptr<float>() + row * depth);
      }
    });
    rows_times_transposed_into(x, wide.narrow(0, 0, count), add.defined() ? add.narrow(1, first, count) : add,
                               y.narrow(1, first, count));
  }
}

}  // namespace

bool few_rows(int64_t rows) { return rows <= kernels::kFewRowsAtMost; }

bool has_stored_kernels(at::TensorList weights) {
  if (autocast_on_cpu() || resolved(Backend::automatic) == Backend::composed) return false;
  return std::all_of(weights.begin(), weights.end(), [](const Tensor& w) {
    return !w.defined() || (w.is_cpu() && (w.scalar_type() == at::kFloat || narrow(w)));
  });
}

void check_inference(const char* op, const Tensor& x, at::TensorList weights) {
  if (x.scalar_type() == at::kBFloat16 || !std::any_of(weights.begin(), weights.end(), narrow)) return;
  check(!needs_gradient({x}) && !needs_gradient(weights), op,
        "the weights are bfloat16, which is for inference; must be float32 for gradients, or without them "
        "(torch.no_grad)");
}

Tensor widened(const Tensor& weight, const Tensor& x) {
  return narrow(weight) && x.scalar_type() == at::kFloat ? weight.to(at::kFloat) : weight;
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
