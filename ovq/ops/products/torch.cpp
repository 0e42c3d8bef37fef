#include "ovq/ops/products/torch.h"

#include <vector>

#include "ovq/base/error.h"
#include "ovq/ops/products/products.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/once_differentiable.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLinear = "linear";

kernels::MatrixView matrix_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {.data = x.data_ptr<float>(),
          .rows = x.size(0),
          .columns = x.size(1),
          .row_stride = x.stride(0),
          .column_stride = x.stride(1)};
}

void multiply_into(const Tensor& a, const Tensor& b, const Tensor& add, const Tensor& c) {
  RECORD_USER_SCOPE("ovq::product");
  use_torch_threads();
  kernels::product({.a = matrix_of(a), .b = matrix_of(b), .add = matrix_of(add)}, c.data_ptr<float>(), c.stride(0));
}

Tensor multiplied(const Tensor& a, const Tensor& b, const Tensor& add = {}) {
  const Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  multiply_into(a, b, add, c);
  return c;
}

bool product_is_faster(const Tensor& a, const Tensor& b) {
  return kernels::product_is_faster(a.size(0), b.size(0), b.size(1));
}

// x [R, I], w [O, I], bias [O] or undefined
class LinearFunction : public OnceDifferentiable<LinearFunction> {
 public:
  static constexpr const char* kOp = kLinear;

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& w, const c10::optional<Tensor>& bias) {
    context->save_for_backward({x, w});
    context->saved_data["wants_w"] = w.requires_grad();
    context->saved_data["wants_bias"] = bias && bias->requires_grad();
    return rows_times_transposed(x, w, bias ? bias->expand({x.size(0), -1}) : Tensor());
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], d_y = gradients[0].contiguous();
    Tensor d_w, d_bias;
    if (context->saved_data["wants_w"].toBool()) d_w = columns_times_rows(d_y, x);
    if (context->saved_data["wants_bias"].toBool()) d_bias = d_y.sum(0);
    return {rows_times(d_y, w), d_w, d_bias};
  }
};

// The library's products in the dtype of their factors, which autocast would round to bfloat16.
Tensor library_product(const Tensor& a, const Tensor& b, const Tensor& add = {}) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return add.defined() ? at::addmm(add, a, b) : at::mm(a, b);
}

}  // namespace

Tensor rows_times_transposed(const Tensor& x, const Tensor& w, const Tensor& add) {
  const Tensor b = w.t();
  if (product_is_faster(x, b)) return multiplied(x, b, add);
  return library_product(x, b, add);
}

void rows_times_transposed_into(const Tensor& x, const Tensor& w, const Tensor& add, Tensor y) {
  const Tensor b = w.t();
  if (product_is_faster(x, b)) return multiply_into(x, b, add, y);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (add.defined())
    at::addmm_out(y, add, x, b);
  else
    at::mm_out(y, x, b);
}

Tensor rows_times(const Tensor& y, const Tensor& w) {
  return product_is_faster(y, w) ? multiplied(y, w) : library_product(y, w);
}

Tensor columns_times_rows(const Tensor& y, const Tensor& x) {
  const int64_t depth = x.size(0), rows = y.size(1), columns = x.size(1);
  if (!kernels::outer_product_is_faster(depth, rows, columns)) return library_product(y.t(), x);
  RECORD_USER_SCOPE("ovq::product");
  use_torch_threads();
  const int64_t sums = kernels::outer_product_sums(depth);
  const Tensor parts = at::empty({sums, rows, columns}, x.options());
  kernels::outer_product(matrix_of(y), matrix_of(x), span_of(parts));
  return sums == 1 ? parts.select(0, 0) : parts.sum(0);
}

Tensor linear(const Tensor& x_any, const Tensor& w_any, const Tensor& bias_any) {
  check(w_any.dim() == 2 && x_any.dim() >= 1 && x_any.size(-1) == w_any.size(1), kLinear, "x has shape ", x_any.sizes(),
        "; must have w's ", w_any.size(1), " columns");
  check(!bias_any.defined() || (bias_any.dim() == 1 && bias_any.size(0) == w_any.size(0)), kLinear, "bias must have ",
        w_any.size(0), " elements");
  check_inference(kLinear, x_any, {w_any});
  const Tensor x = float_rows(kLinear, "x", x_any).view({rows_of(x_any), x_any.size(-1)});
  const Tensor bias = float_rows(kLinear, "bias", bias_any);
  std::vector<int64_t> sizes = x_any.sizes().vec();
  sizes.back() = w_any.size(0);
  const bool recorded = needs_gradient({x, w_any, bias});
  const Tensor w = recorded ? trained_weight(kLinear, w_any) : stored_weight(kLinear, w_any);
  const Tensor y = recorded ? LinearFunction::apply(x, w, bias.defined() ? c10::optional<Tensor>(bias) : c10::nullopt)
                            : rows_times_stored(x, {w}, bias.defined() ? bias.expand({x.size(0), -1}) : bias);
  return y.view(sizes).to(x_any.scalar_type());
}

}  // namespace ovq::ops
