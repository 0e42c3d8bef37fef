#include "ovq/ops/norm/torch.h"

#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "ovq/base/error.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlock = 32;  // rows a thread takes at a time

// y_i = x_i r_i w, r_i = (scale sum(x_i^2) + eps)^(-1/2), of each group of a row. No weight: ones. r [rows, groups]
template <class T>
void normalise(const Tensor& x, const Tensor& weight, double scale, double eps, const Tensor& y, const Tensor& r) {
  const int64_t rows = r.size(0), groups = r.size(1), size = x.size(-1) / groups;
  const T* const from = x.data_ptr<T>();
  const T* const w = weight.defined() ? weight.data_ptr<T>() : nullptr;
  T *const to = y.data_ptr<T>(), *const inverse = r.data_ptr<T>();
  parallel_blocks(rows, kBlock, groups * size, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin * groups; part < end * groups; ++part) {
      const T* const x_row = from + part * size;
      T* const y_row = to + part * size;
      const T inv = T(1) / std::sqrt(T(scale) * dot(x_row, x_row, size) + T(eps));
      inverse[part] = inv;
      if (w != nullptr) {
        const T* const w_row = w + part % groups * size;
        for (int64_t i = 0; i < size; ++i) y_row[i] = x_row[i] * inv * w_row[i];
      } else {
        for (int64_t i = 0; i < size; ++i) y_row[i] = x_row[i] * inv;
      }
    }
  });
}

// dw is a row per block of rows.
template <class T>
void rms_norm_rows_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight, const Tensor& r,
                            const Tensor& d_x, const Tensor& d_w) {
  const int64_t rows = r.size(0), groups = r.size(1), size = x.size(-1) / groups;
  const T *const dy = d_y.data_ptr<T>(), *const from = x.data_ptr<T>(), *const w = weight.data_ptr<T>();
  const T* const inverse = r.data_ptr<T>();
  T *const dx = d_x.data_ptr<T>(), *const dw = d_w.data_ptr<T>();
  parallel_blocks(rows, kBlock, groups * size, [&](int64_t begin, int64_t end) {
    T* const dw_block = dw + begin / kBlock * groups * size;
    std::fill_n(dw_block, groups * size, T(0));
    for (int64_t part = begin * groups; part < end * groups; ++part) {
      const T *const x_row = from + part * size, *const dy_row = dy + part * size;
      T* const dx_row = dx + part * size;
      const T* const w_row = w + part % groups * size;
      T* const dw_row = dw_block + part % groups * size;
      const T inv = inverse[part];
      for (int64_t i = 0; i < size; ++i) dx_row[i] = dy_row[i] * w_row[i];  // g
      const T projection = inv * inv / T(size) * dot(dx_row, x_row, size);
      for (int64_t i = 0; i < size; ++i) {
        dw_row[i] += dy_row[i] * (x_row[i] * inv);
        dx_row[i] = inv * (dx_row[i] - x_row[i] * projection);
      }
    }
  });
}

template <class T>
void l2_norm_rows_backward(const Tensor& d_y, const Tensor& y, const Tensor& r, const Tensor& d_x) {
  const int64_t rows = r.numel(), size = y.size(-1);
  const T *const dy = d_y.data_ptr<T>(), *const unit = y.data_ptr<T>(), *const inverse = r.data_ptr<T>();
  T* const dx = d_x.data_ptr<T>();
  parallel_blocks(rows, kBlock, size, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *const y_row = unit + row * size, *const dy_row = dy + row * size;
      T* const dx_row = dx + row * size;
      const T projection = dot(dy_row, y_row, size);
      for (int64_t i = 0; i < size; ++i) dx_row[i] = inverse[row] * (dy_row[i] - y_row[i] * projection);
    }
  });
}

Tensor inverse_norms(const Tensor& x, int64_t groups = 1) {
  return at::empty({x.numel() / x.size(-1), groups}, x.options());
}

// The row kernels take these; float64 and groups are for the loops above.
bool takes_row_kernels(const Tensor& x, int64_t groups) { return groups == 1 && x.scalar_type() == at::kFloat; }

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x_any, const Tensor& weight_any, double eps, int64_t groups) {
  RECORD_USER_SCOPE("ovq::rms_norm_forward");
  const Tensor x = x_any.contiguous(), weight = weight_any.contiguous();
  if (takes_row_kernels(x, groups)) {
    const NormedRows rows = norm_rows(x, weight, eps);
    return {rows.y, rows.r.view({-1, 1})};
  }
  const Tensor y = at::empty(x.sizes(), x.options()), r = inverse_norms(x, groups);
  const double scale = static_cast<double>(groups) / static_cast<double>(x.size(-1));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm", [&] { normalise<scalar_t>(x, weight, scale, eps, y, r); });
  return {y, r};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& d_y_any, const Tensor& x_any, const Tensor& weight_any,
                                             const Tensor& r) {
  RECORD_USER_SCOPE("ovq::rms_norm_backward");
  const Tensor d_y = d_y_any.contiguous(), x = x_any.contiguous(), weight = weight_any.contiguous();
  if (takes_row_kernels(x, r.size(1))) {
    const NormGradients rows = norm_rows_backward(d_y, x, weight, r, {});
    return {rows.d_x, rows.d_weight};
  }
  const Tensor d_x = at::empty(x.sizes(), x.options());
  const Tensor d_w = at::empty({(r.size(0) + kBlock - 1) / kBlock, x.size(-1)}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm_backward",
                             [&] { rms_norm_rows_backward<scalar_t>(d_y, x, weight, r, d_x, d_w); });
  return {d_x, d_w.sum(0)};
}

class RmsNormFunction : public OnceDifferentiable<RmsNormFunction> {
 public:
  static constexpr const char* kOp = "rms_norm";

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
  const Tensor x = x_any.contiguous(), y = at::empty(x.sizes(), x.options()), r = inverse_norms(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "l2_norm", [&] { normalise<scalar_t>(x, {}, 1.0, eps, y, r); });
  return {y, r};
}

Tensor l2_norm_backward(const Tensor& d_y_any, const Tensor& y_any, const Tensor& r) {
  RECORD_USER_SCOPE("ovq::l2_norm_backward");
  const Tensor d_y = d_y_any.contiguous(), y = y_any.contiguous(), d_x = at::empty(y.sizes(), y.options());
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "l2_norm_backward",
                             [&] { l2_norm_rows_backward<scalar_t>(d_y, y, r, d_x); });
  return d_x;
}

class L2NormFunction : public OnceDifferentiable<L2NormFunction> {
 public:
  static constexpr const char* kOp = "l2_norm";

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

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  check(x.dim() >= 1 && weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1), "rms_norm", "weight has shape ",
        ShapeText{weight}, "; must have one element per last dimension of x, ", ShapeText{x});
  const int64_t width = fixed_size(x, -1);
  check(groups >= 1 && width % groups == 0, "rms_norm", "groups is ", groups, "; must divide the last dimension of x, ",
        width);
  if (groups == 1 && !is_empty(x) && !is_recorded({x, weight}) && has_row_kernels({x, weight})) {
    return norm_rows(x.contiguous(), weight.contiguous(), eps).y;
  }
  if (!is_empty(x) && runs_loops(x) && weight.scalar_type() == x.scalar_type()) {
    return RmsNormFunction::apply(x.contiguous(), weight.contiguous(), eps, groups);
  }
  const Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat)).unflatten(-1, {groups, width / groups});
  return ((wide * (wide.square().mean(-1, true) + eps).rsqrt()).flatten(-2) * weight).to(x.scalar_type());
}

Tensor l2_norm(const Tensor& x, double eps) {
  if (!is_empty(x) && runs_loops(x)) return L2NormFunction::apply(x.contiguous(), eps);
  const Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  return (wide * (wide.square().sum(-1, true) + eps).rsqrt()).to(x.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
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
