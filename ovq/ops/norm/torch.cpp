#include "ovq/ops/norm/torch.h"

#include <torch/library.h>

#include <tuple>

#include "ovq/base/error.h"
#include "ovq/ops/norm/norm.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/arguments.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/once_differentiable.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRmsNorm = "rms_norm";
constexpr const char* kL2Norm = "l2_norm";

kernels::RmsNormInputs inputs_of(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  return {.x = span_of(x), .weight = span_of(weight), .groups = groups, .eps = static_cast<float>(eps)};
}

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  RECORD_USER_SCOPE("ovq::rms_norm_forward");
  const NormedRows rows = norm_rows(x.contiguous(), weight.contiguous(), eps, groups);
  return {rows.y, rows.r};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight,
                                             const Tensor& r) {
  RECORD_USER_SCOPE("ovq::rms_norm_backward");
  const NormGradients rows = norm_rows_backward(d_y.contiguous(), x.contiguous(), weight.contiguous(), r);
  return {rows.d_x, rows.d_weight};
}

class RmsNormFunction : public OnceDifferentiable<RmsNormFunction> {
 public:
  static constexpr const char* kOp = kRmsNorm;

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
    static const auto op = dispatched<decltype(rms_norm_forward)>("ovq::rms_norm_forward");
    const auto [y, r] = call_dispatched(op, x, weight, eps, groups);
    context->save_for_backward({x, weight, r});
    return y;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(rms_norm_backward)>("ovq::rms_norm_backward");
    const variable_list saved = context->get_saved_variables();
    const auto [d_x, d_weight] = call_dispatched(op, gradients[0], saved[0], saved[1], saved[2]);
    return {d_x, d_weight, Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> l2_norm_forward(const Tensor& x_any, double eps) {
  RECORD_USER_SCOPE("ovq::l2_norm_forward");
  use_torch_threads();
  const Tensor x = x_any.contiguous(), y = at::empty(x.sizes(), x.options());
  const Tensor r = at::empty({rows_of(x), 1}, x.options());
  if (x.numel() > 0) {
    kernels::l2_norm_forward(span_of(x), x.size(-1), static_cast<float>(eps), span_of(y), span_of(r));
  }
  return {y, r};
}

Tensor l2_norm_backward(const Tensor& d_y_any, const Tensor& y_any, const Tensor& r) {
  RECORD_USER_SCOPE("ovq::l2_norm_backward");
  use_torch_threads();
  const Tensor d_y = d_y_any.contiguous(), y = y_any.contiguous(), d_x = at::empty(y.sizes(), y.options());
  if (y.numel() > 0) kernels::l2_norm_backward(span_of(d_y), span_of(y), span_of(r), y.size(-1), span_of(d_x));
  return d_x;
}

class L2NormFunction : public OnceDifferentiable<L2NormFunction> {
 public:
  static constexpr const char* kOp = kL2Norm;

  static Tensor forward(AutogradContext* context, const Tensor& x, double eps) {
    static const auto op = dispatched<decltype(l2_norm_forward)>("ovq::l2_norm_forward");
    const auto [y, r] = call_dispatched(op, x, eps);
    context->save_for_backward({y, r});
    return y;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(l2_norm_backward)>("ovq::l2_norm_backward");
    const variable_list saved = context->get_saved_variables();
    return {call_dispatched(op, gradients[0], saved[0], saved[1]), Tensor()};
  }
};

}  // namespace

NormedRows norm_rows(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  use_torch_threads();
  const NormedRows result{at::empty(x.sizes(), x.options()), at::empty({rows_of(x), groups}, x.options())};
  if (x.numel() == 0) return result;
  kernels::rms_norm_forward(inputs_of(x, weight, eps, groups), span_of(result.y), span_of(result.r));
  return result;
}

NormGradients norm_rows_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight, const Tensor& r,
                                 const Tensor& add) {
  use_torch_threads();
  const Tensor d_x = at::empty(x.sizes(), x.options());
  const Tensor d_weight = at::empty({kernels::rms_norm_sums(r.size(0)), x.size(-1)}, x.options());
  if (x.numel() > 0) {
    kernels::rms_norm_backward(
        inputs_of(x, weight, 0, r.size(1)), span_of(d_y), span_of(r),
        {.d_x = span_of(d_x), .d_weight = span_of(d_weight), .add = add.defined() ? span_of(add) : std::span<float>()});
  }
  return {d_x, d_weight.sum(0)};
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  check(x.dim() >= 1 && weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1), kRmsNorm, "weight has shape ",
        ShapeText{weight}, "; must have one element per last dimension of x, ", ShapeText{x});
  const int64_t width = fixed_size(x, -1);
  check(groups >= 1 && width % groups == 0, kRmsNorm, "groups is ", groups, "; must divide the last dimension of x, ",
        width);
  const Tensor rows = float_rows(kRmsNorm, "x", x), factors = float_rows(kRmsNorm, "weight", weight);
  if (is_recorded({rows, factors})) return RmsNormFunction::apply(rows, factors, eps, groups).to(x.scalar_type());
  return norm_rows(rows, factors, eps, groups).y.to(x.scalar_type());
}

Tensor l2_norm(const Tensor& x, double eps) {
  check(x.dim() >= 1, kL2Norm, "x has 0 dimensions; must have at least 1");
  const Tensor rows = float_rows(kL2Norm, "x", x);
  if (is_recorded({rows})) return L2NormFunction::apply(rows, eps).to(x.scalar_type());
  return std::get<0>(l2_norm_forward(rows, eps)).to(x.scalar_type());
}

namespace {

Tensor rms_norm_op(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  check_arguments(kRmsNorm, {{"x", x}, {"weight", weight}});
  return rms_norm(x, weight, eps, groups);
}

Tensor l2_norm_op(const Tensor& x, double eps) {
  check_arguments(kL2Norm, {{"x", x}});
  return l2_norm(x, eps);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps=1e-06, int groups=1) -> Tensor", rms_norm_op);
  library.def("l2_norm(Tensor x, float eps=1e-06) -> Tensor", l2_norm_op);
  const auto on_cpu = [&](const char* schema, auto* function) {
    library.def(schema, torch::dispatch(c10::DispatchKey::CPU, function));
  };
  on_cpu("rms_norm_forward(Tensor x, Tensor weight, float eps, int groups) -> (Tensor y, Tensor r)", rms_norm_forward);
  on_cpu("rms_norm_backward(Tensor d_y, Tensor x, Tensor weight, Tensor r) -> (Tensor d_x, Tensor d_weight)",
         rms_norm_backward);
  on_cpu("l2_norm_forward(Tensor x, float eps) -> (Tensor y, Tensor r)", l2_norm_forward);
  on_cpu("l2_norm_backward(Tensor d_y, Tensor y, Tensor r) -> Tensor", l2_norm_backward);
}

}  // namespace ovq::ops
