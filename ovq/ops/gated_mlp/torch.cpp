#include "ovq/ops/gated_mlp/torch.h"

#include "ovq/base/error.h"
#include "ovq/ops/gated_mlp/gate.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/once_differentiable.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGatedMlp = "gated_mlp";
// [rows, 2 I] -> [rows, I]
Tensor gated(const Tensor& gate_up) {
  RECORD_USER_SCOPE("ovq::gate_forward");
  use_torch_threads();
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  const Tensor a = at::empty({rows, width}, gate_up.options());
  if (width > 0) kernels::gate_forward(span_of(gate_up), width, span_of(a));
  return a;
}

// d_a [rows, I] becomes a; -> d_gate_up
Tensor gated_backward(const Tensor& gate_up, const Tensor& d_a) {
  RECORD_USER_SCOPE("ovq::gate_backward");
  use_torch_threads();
  const Tensor d_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  if (d_a.size(1) > 0) kernels::gate_backward(span_of(gate_up), d_a.size(1), span_of(d_a), span_of(d_gate_up));
  return d_gate_up;
}

class GatedMlpFunction : public OnceDifferentiable<GatedMlpFunction> {
 public:
  static constexpr const char* kOp = kGatedMlp;

  // x [R, C]
  static Tensor forward(AutogradContext* context, const Tensor& x, const c10::optional<Tensor>& norm_any,
                        const Tensor& gate, const Tensor& up, const Tensor& down, double eps, bool residual) {
    const Tensor norm = norm_any.value_or(Tensor());
    NormedRows n{x, {}};
    if (norm.defined()) {
      RECORD_USER_SCOPE("ovq::rms_norm_forward");
      n = norm_rows(x, norm, eps);
    }
    const Tensor matrix = at::cat({gate, up});
    const Tensor gate_up = rows_times_transposed(n.y, matrix);
    const Tensor a = gated(gate_up);
    const Tensor y = rows_times_transposed(a, down, residual ? x : Tensor());
    context->save_for_backward({x, norm, n.r, norm.defined() ? n.y : Tensor(), matrix, gate_up, down});
    context->saved_data["residual"] = residual;
    context->saved_data["wants_gate_up"] = gate.requires_grad() || up.requires_grad();
    context->saved_data["wants_down"] = down.requires_grad();
    return y;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &norm = saved[1], &r = saved[2], &n = norm.defined() ? saved[3] : x;
    const Tensor &matrix = saved[4], &gate_up = saved[5], &down = saved[6];
    const Tensor d_y = gradients[0].contiguous();
    const bool residual = context->saved_data["residual"].toBool();
    const Tensor a = rows_times(d_y, down);  // its gradient, until gated_backward
    const Tensor d_gate_up = gated_backward(gate_up, a);
    Tensor d_x = rows_times(d_gate_up, matrix), d_norm, d_gate, d_up, d_down;
    if (context->saved_data["wants_down"].toBool()) d_down = columns_times_rows(d_y, a);
    if (context->saved_data["wants_gate_up"].toBool()) {
      const std::vector<Tensor> halves = columns_times_rows(d_gate_up, n).chunk(2);
      d_gate = halves[0];
      d_up = halves[1];
    }
    if (norm.defined()) {
      RECORD_USER_SCOPE("ovq::rms_norm_backward");
      const NormGradients both = norm_rows_backward(d_x, x, norm, r, residual ? d_y : Tensor());
      d_x = both.d_x;
      d_norm = both.d_weight;
    } else if (residual) {
      d_x.add_(d_y);
    }
    return {d_x, d_norm, d_gate, d_up, d_down, Tensor(), Tensor()};
  }
};

void check_inputs(const GatedMlpInputs& in) {
  check(in.x.dim() >= 1, kGatedMlp, "x has no dimensions; must have 1 at least");
  const int64_t width = in.x.size(-1);
  check(in.gate.dim() == 2 && in.gate.size(1) == width, kGatedMlp, "gate has shape ", in.gate.sizes(),
        "; must be [inner, ", width, "]");
  check(in.up.sizes() == in.gate.sizes(), kGatedMlp, "up has shape ", in.up.sizes(), "; must be gate's ",
        in.gate.sizes());
  check(in.down.dim() == 2 && in.down.size(0) == width && in.down.size(1) == in.gate.size(0), kGatedMlp,
        "down has shape ", in.down.sizes(), "; must be [", width, ", ", in.gate.size(0), "]");
  check(!in.norm.defined() || (in.norm.dim() == 1 && in.norm.size(0) == width), kGatedMlp, "norm must have ", width,
        " elements");
}

}  // namespace

Tensor gated_mlp(const GatedMlpInputs& in) {
  check_inputs(in);
  check_inference(kGatedMlp, in.x, {in.gate, in.up, in.down});
  const Tensor x = float_rows(kGatedMlp, "x", in.x).view({rows_of(in.x), in.x.size(-1)});
  const Tensor norm = float_rows(kGatedMlp, "norm", in.norm);
  Tensor y;
  if (needs_gradient({x, norm, in.gate, in.up, in.down})) {
    const auto weight = [](const Tensor& any) { return trained_weight(kGatedMlp, any); };
    y = GatedMlpFunction::apply(x, norm.defined() ? c10::optional<Tensor>(norm) : c10::nullopt, weight(in.gate),
                                weight(in.up), weight(in.down), in.eps, in.residual);
  } else {  // nothing is kept, and no weight is copied
    const auto weight = [](const Tensor& any) { return stored_weight(kGatedMlp, any); };
    const Tensor n = norm.defined() ? norm_rows(x, norm, in.eps).y : x, gate = weight(in.gate), up = weight(in.up);
    Tensor a = few_rows_gated(n, gate, up);
    if (!a.defined()) a = gated(rows_times_stored(n, {gate, up}));
    y = rows_times_stored(a, {weight(in.down)}, in.residual ? x : Tensor());
  }
  return y.view(in.x.sizes()).to(in.x.scalar_type());
}

}  // namespace ovq::ops
