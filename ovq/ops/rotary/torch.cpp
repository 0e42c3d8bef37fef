#include "ovq/ops/rotary/torch.h"

#include <torch/library.h>

#include <cmath>

#include "ovq/base/error.h"
#include "ovq/ops/rotary/rotate.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Position of each time step, as double: exact up to 2^53.
Tensor positions_of(const Tensor& x, const RotaryOptions& options) {
  Tensor positions = at::arange(x.size(1), at::kDouble) + static_cast<double>(options.first_position);
  for (const auto& sequence :
       kernels::check_sequences("rotary", x.size(0), x.size(1), offsets_of("rotary", options.cu_seqlens))) {
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

// The same for a few tokens: a decode step would spend more time on ten calls of torch than on the angles.
constexpr int64_t kFewPositions = 8;
Tensor few_positions(const Tensor& x, const RotaryOptions& options) {
  const int64_t dim = x.size(3), half = dim / 2;
  const Tensor table = at::empty({x.size(1), dim}, x.options());
  float* row = table.data_ptr<float>();
  for (int64_t t = 0; t < x.size(1); ++t, row += dim) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::exp(static_cast<double>(i) * (-std::log(options.base) / static_cast<double>(half)));
      const double angle = static_cast<double>(options.first_position + t) * frequency;
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

// `table` has x's shape, or one that becomes it.
Tensor turned(const Tensor& x, const Tensor& table) {
  const auto halves = x.chunk(2, -1), angles = table.chunk(2, -1);
  return at::cat({halves[0] * angles[0] - halves[1] * angles[1], halves[0] * angles[1] + halves[1] * angles[0]}, -1);
}

template <class T>
void rotate_rows(const Tensor& x, const Tensor& table, T direction, const Tensor& y) {
  const int64_t batch = x.size(0), time = x.size(1), heads = x.size(2), dim = x.size(3);
  parallel_blocks(batch * time, 32, heads * dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / time, t = row % time;
      for (int64_t h = 0; h < heads; ++h) {
        const T* from = x.data_ptr<T>() + b * x.stride(0) + t * x.stride(1) + h * x.stride(2);
        kernels::detail::rotate(from, table.data_ptr<T>() + t * dim, dim, direction,
                                y.data_ptr<T>() + (row * heads + h) * dim);
      }
    }
  });
}

Tensor rotated(const Tensor& x_any, const Tensor& table_any, double direction) {
  RECORD_USER_SCOPE("ovq::rotary");
  const Tensor table = table_any.contiguous();
  const Tensor x = with_contiguous_rows(x_any), y = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rotary",
                             [&] { rotate_rows<scalar_t>(x, table, static_cast<scalar_t>(direction), y); });
  return y;
}

class RotaryFunction : public OnceDifferentiable<RotaryFunction> {
 public:
  static constexpr const char* kOp = "rotary";

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

}  // namespace

Tensor rotary_table(const Tensor& x, const RotaryOptions& options) {
  check(x.dim() == 4 && fixed_size(x, 3) % 2 == 0, "rotary", "x has shape ", ShapeText{x},
        "; must be [batch, time, heads, dim] with an even dim");
  if (is_traced({x, or_undefined(options.cu_seqlens)})) {
    static const auto op = dispatched<decltype(rotary_angles)>("ovq::rotary_angles");
    return call_dispatched(op, x, options.base, options.first_position, options.cu_seqlens);
  }
  const bool packed = options.cu_seqlens && options.cu_seqlens->defined();
  if (x.size(1) <= kFewPositions && !packed && x.is_cpu() && x.scalar_type() == at::kFloat) {
    return few_positions(x, options);
  }
  return table_of(positions_of(x, options), x.size(3), options.base).to(x.options());
}

Tensor rotary(const Tensor& x, const RotaryOptions& options) { return rotate(x, rotary_table(x, options)); }

Tensor rotate(const Tensor& x, const Tensor& table) {
  if (!is_empty(x) && runs_loops(x)) return RotaryFunction::apply(x, table);
  return turned(x, table.unsqueeze(1));
}

Tensor rotate_composed(const Tensor& x, int64_t first_position, double base) {
  const Tensor positions = at::arange(first_position, first_position + x.size(-2), at::kDouble);
  return turned(x, table_of(positions, x.size(-1), base).to(x.options()));
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("rotary_angles(Tensor x, float base, int first_position, Tensor? cu_seqlens) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, rotary_angles));
  library.def("rotated(Tensor x, Tensor table, float direction) -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, rotated));
}

}  // namespace ovq::ops
