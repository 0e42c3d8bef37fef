#include "ovq/ops/rotary/torch.h"

#include <torch/library.h>

#include <cmath>

#include "ovq/base/error.h"
#include "ovq/ops/rotary/rotary.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/arguments.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRotary = "rotary";

// Position of each time step, as double: exact up to 2^53.
Tensor positions_of(const Tensor& x, const RotaryOptions& options) {
  Tensor positions = at::arange(x.size(1), at::kDouble) + static_cast<double>(options.first_position);
  for (const auto& sequence :
       kernels::check_sequences(kRotary, x.size(0), x.size(1), offsets_of(kRotary, options.cu_seqlens))) {
    if (sequence.first > 0) {
      positions.narrow(0, sequence.first, sequence.length).sub_(static_cast<double>(sequence.first));
    }
  }
  return positions;
}

// Cosines, then sines of `dim` / 2 angles for each position: [T, dim] in double
Tensor table_of(const Tensor& positions, int64_t dim, double base) {
  const int64_t half = dim / 2;
  const Tensor frequencies = (at::arange(half, at::kDouble) * (-std::log(base) / half)).exp();
  const Tensor angles = positions.unsqueeze(1) * frequencies;
  return at::cat({angles.cos(), angles.sin()}, 1);
}

// A decode step would spend more time on ten calls of torch than on the angles.
constexpr int64_t kFewPositions = 8;

Tensor rotated(const Tensor& x_any, const Tensor& table_any, double direction) {
  RECORD_USER_SCOPE("ovq::rotary");
  use_torch_threads();
  const Tensor table = table_any.contiguous();
  const Tensor x = with_contiguous_rows(x_any), y = at::empty(x.sizes(), x.options());
  if (x.numel() > 0) kernels::rotary(view_of(x), span_of(table), static_cast<float>(direction), view_of(y));
  return y;
}

class RotaryFunction : public OnceDifferentiable<RotaryFunction> {
 public:
  static constexpr const char* kOp = kRotary;

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& table) {
    context->save_for_backward({table});
    return turn(x, table, 1.0);
  }
  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    return {turn(gradients[0], context->get_saved_variables()[0], -1.0), Tensor()};
  }

 private:
  static Tensor turn(const Tensor& x, const Tensor& table, double direction) {
    static const auto op = dispatched<decltype(rotated)>("ovq::rotated");
    return call_dispatched(op, x, table, direction);
  }
};

// Of x's sizes, where they may be symbols.
Tensor rotary_angles(const Tensor& x, double base, int64_t first_position, const c10::optional<Tensor>& cu_seqlens) {
  return rotary_table(x, {.base = base, .first_position = first_position, .cu_seqlens = cu_seqlens});
}

Tensor rotary_op(const Tensor& x, double base, int64_t first_position, const c10::optional<Tensor>& cu_seqlens) {
  check_arguments(kRotary, {{"x", x}});
  check(base > 0, kRotary, "base is ", base, "; must be positive");
  return rotary(x, {.base = base, .first_position = first_position, .cu_seqlens = cu_seqlens});
}

}  // namespace

Tensor rotary_table(const Tensor& x, const RotaryOptions& options) {
  check(x.dim() == 4 && fixed_size(x, 3) % 2 == 0, kRotary, "x has shape ", ShapeText{x},
        "; must be [batch, time, heads, dim] with an even dim");
  if (is_traced({x, or_undefined(options.cu_seqlens)})) {
    static const auto op = dispatched<decltype(rotary_angles)>("ovq::rotary_angles");
    return call_dispatched(op, x, options.base, options.first_position, options.cu_seqlens);
  }
  const bool packed = options.cu_seqlens && options.cu_seqlens->defined();
  if (x.size(1) > kFewPositions || packed) {
    return table_of(positions_of(x, options), x.size(3), options.base).to(x.options().dtype(at::kFloat));
  }
  const Tensor table = at::empty({x.size(1), x.size(3)}, x.options().dtype(at::kFloat));
  if (table.numel() > 0) {
    kernels::rotary_angles(options.first_position, x.size(1), x.size(3), options.base, span_of(table));
  }
  return table;
}

Tensor rotary(const Tensor& x, const RotaryOptions& options) {
  const Tensor rows = as_float(kRotary, "x", x);
  return rotate(rows, rotary_table(rows, options)).to(x.scalar_type());
}

Tensor rotate(const Tensor& x, const Tensor& table) {
  const Tensor rows = as_float(kRotary, "x", x);
  if (is_recorded({rows})) return RotaryFunction::apply(rows, table).to(x.scalar_type());
  return rotated(rows, table, 1.0).to(x.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("rotary(Tensor x, float base=10000., int first_position=0, Tensor? cu_seqlens=None) -> Tensor",
              rotary_op);
  library.def("rotary_angles(Tensor x, float base, int first_position, Tensor? cu_seqlens) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, rotary_angles));
  library.def("rotated(Tensor x, Tensor table, float direction) -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, rotated));
}

}  // namespace ovq::ops
