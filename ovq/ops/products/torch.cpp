#include "ovq/ops/products/torch.h"

#include <algorithm>
#include <vector>

#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowBlock = 96;               // that a thread multiplies with a panel at a time
constexpr int64_t kFewestRows = 64;             // below, packing costs more than it saves
constexpr int64_t kDeepest = 1024;              // a panel stays in the cache
constexpr int64_t kLargest = int64_t{1} << 19;  // elements of the matrix
constexpr int64_t kRowsPerPart = 1024;          // of an outer product that are summed on their own, by one thread
constexpr int64_t kMostParts = 8;
constexpr int64_t kNarrow = 64;  // rows or columns of an outer product, up to which the kernel is faster

bool has_kernel(int64_t rows, int64_t depth, int64_t columns) {
  return rows >= kFewestRows && depth <= kDeepest && depth * columns <= kLargest &&
         kernels::detail::row_kernels().fast_products;
}

// c = a b + add with b [depth, columns] given by its strides
void multiply_into(const Tensor& a, const kernels::detail::PackedMatrix& b, const Tensor& add, const Tensor& c) {
  RECORD_USER_SCOPE("ovq::product");
  const int64_t rows = a.size(0), widest = kernels::detail::kWidestPanel;
  const Tensor panels = at::empty({b.depth * ((b.columns + widest - 1) / widest * widest)}, a.options());
  const auto& kernels = kernels::detail::row_kernels();
  kernels.pack(b, panels.data_ptr<float>());
  parallel_blocks(rows, kRowBlock, b.depth * b.columns, [&](int64_t begin, int64_t end) {
    kernels.product({.a = a.data_ptr<float>() + begin * a.stride(0),
                     .a_stride = a.stride(0),
                     .panels = panels.data_ptr<float>(),
                     .add = add.defined() ? add.data_ptr<float>() + begin * add.stride(0) : nullptr,
                     .add_stride = add.defined() ? add.stride(0) : 0,
                     .rows = end - begin,
                     .columns = b.columns,
                     .depth = b.depth},
                    c.data_ptr<float>() + begin * c.stride(0), c.stride(0));
  });
}

Tensor multiplied(const Tensor& a, const kernels::detail::PackedMatrix& b, const Tensor& add) {
  const Tensor c = at::empty({a.size(0), b.columns}, a.options());
  multiply_into(a, b, add, c);
  return c;
}

kernels::detail::PackedMatrix transposed(const Tensor& w) {
  return {.b = w.data_ptr<float>(),
          .depth_stride = w.stride(1),
          .column_stride = w.stride(0),
          .depth = w.size(1),
          .columns = w.size(0)};
}

class LinearFunction : public OnceDifferentiable<LinearFunction> {
 public:
  static constexpr const char* kOp = "linear";

  static Tensor forward(AutogradContext* context, const Tensor& x_any, const Tensor& w) {
    const Tensor x = x_any.contiguous().view({-1, x_any.size(-1)});
    context->save_for_backward({x, w});
    context->saved_data["wants_w"] = w.requires_grad();
    std::vector<int64_t> sizes = x_any.sizes().vec();
    sizes.back() = w.size(0);
    return rows_times_transposed(x, w).view(sizes);
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1];
    std::vector<int64_t> sizes = gradients[0].sizes().vec();
    sizes.back() = x.size(1);
    const Tensor d_y = gradients[0].contiguous().view({-1, w.size(0)});
    Tensor d_w;
    if (context->saved_data["wants_w"].toBool()) d_w = columns_times_rows(d_y, x);
    return {rows_times(d_y, w).view(sizes), d_w};
  }
};

}  // namespace

Tensor rows_times_transposed(const Tensor& x, const Tensor& w, const Tensor& add) {
  if (!has_kernel(x.size(0), x.size(1), w.size(0))) return add.defined() ? at::addmm(add, x, w.t()) : at::mm(x, w.t());
  return multiplied(x, transposed(w), add);
}

void rows_times_transposed_into(const Tensor& x, const Tensor& w, const Tensor& add, Tensor y) {
  if (has_kernel(x.size(0), x.size(1), w.size(0))) return multiply_into(x, transposed(w), add, y);
  if (add.defined())
    at::addmm_out(y, add, x, w.t());
  else
    at::mm_out(y, x, w.t());
}

Tensor rows_times(const Tensor& y, const Tensor& w) {
  if (!has_kernel(y.size(0), y.size(1), w.size(1))) return at::mm(y, w);
  return multiplied(y,
                    {.b = w.data_ptr<float>(),
                     .depth_stride = w.stride(0),
                     .column_stride = w.stride(1),
                     .depth = w.size(0),
                     .columns = w.size(1)},
                    {});
}

Tensor columns_times_rows(const Tensor& y, const Tensor& x) {
  const int64_t depth = x.size(0), rows = y.size(1), columns = x.size(1);
  if (std::min(rows, columns) > kNarrow || !has_kernel(depth, std::min(rows, columns), std::max(rows, columns))) {
    return at::mm(y.t(), x);
  }
  RECORD_USER_SCOPE("ovq::product");
  const int64_t sums = std::clamp<int64_t>(depth / kRowsPerPart, 1, kMostParts), step = (depth + sums - 1) / sums;
  const Tensor parts = at::empty({sums, rows, columns}, x.options());
  const auto& kernels = kernels::detail::row_kernels();
  parallel_blocks(sums, 1, step * rows * columns, [&](int64_t part, int64_t) {
    const int64_t first = std::min(depth, part * step), count = std::min(step, depth - first);
    alignas(64) float scratch[kernels::detail::kOuterDepth * kernels::detail::kWidestPanel];
    kernels.outer_product({.a = y.data_ptr<float>() + first * y.stride(0),
                           .a_stride = y.stride(0),
                           .b = x.data_ptr<float>() + first * x.stride(0),
                           .b_stride = x.stride(0),
                           .rows = rows,
                           .columns = columns,
                           .depth = count},
                          scratch, parts.data_ptr<float>() + part * rows * columns, columns);
  });
  return sums == 1 ? parts.select(0, 0) : parts.sum(0);
}

Tensor composed_linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (x.is_cpu() && x.scalar_type() == at::kHalf && w.scalar_type() == at::kHalf) {
    const Tensor add = bias.defined() ? bias.to(at::kFloat) : bias;
    return at::linear(x.to(at::kFloat), w.to(at::kFloat), add).to(at::kHalf);
  }
  return at::linear(x, widened(w, x), bias);
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  check_inference("linear", x, {w});
  const bool stored = x.numel() > 0 && has_row_kernels({x, bias}) && has_stored_kernels({w}) &&
                      !needs_gradient({x, w, bias}) && w.dim() == 2 && x.size(-1) == w.size(1);
  const int64_t rows = x.numel() / std::max<int64_t>(1, x.size(-1));
  if (stored && (few_rows(rows) || w.scalar_type() != at::kFloat)) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = w.size(0);
    const Tensor add = bias.defined() ? bias.contiguous().expand({rows, -1}) : Tensor();
    return rows_times_stored(x.contiguous().view({rows, x.size(-1)}), {w}, add).view(sizes);
  }
  if (bias.defined() || w.scalar_type() != at::kFloat || x.numel() == 0 || !has_row_kernels({x, w}) ||
      !has_kernel(x.numel() / x.size(-1), x.size(-1), w.size(0))) {
    return composed_linear(x, w, bias);
  }
  return LinearFunction::apply(x, w);
}

}  // namespace ovq::ops
