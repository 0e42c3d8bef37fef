#include "ovq/ops/short_convolution/torch.h"

#include <torch/library.h>

#include <span>
#include <tuple>
#include <vector>

#include "ovq/ops/recurrence/torch_sequences.h"
#include "ovq/ops/short_convolution/short_convolution.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kShortConvolution = "short_convolution";

// [B, T, C] with contiguous rows; undefined: absent
kernels::View<float> channels_view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {x.data_ptr<float>(), x.size(0), x.size(1), 1, x.size(2), x.stride(0), x.stride(1), 0};
}

struct ConvolutionTensors {
  Tensor x, taps, bias, before;  // the last two may be undefined
  bool silu;
  std::vector<int64_t> cu_seqlens;

  ConvolutionTensors(const Tensor& x_any, const Tensor& weight, const c10::optional<Tensor>& bias_any,
                     const c10::optional<Tensor>& before_any, const c10::optional<Tensor>& packed, bool with_silu)
      : x(with_contiguous_rows(x_any)),
        taps(weight.t().contiguous()),
        bias(bias_any ? bias_any->contiguous() : Tensor()),
        before(before_any ? with_contiguous_rows(*before_any) : Tensor()),
        silu(with_silu),
        cu_seqlens(offsets_of(kShortConvolution, packed)) {}

  kernels::ShortConvolutionInputs views() const {
    return {.x = channels_view_of(x),
            .taps = span_of(taps),
            .bias = bias.defined() ? span_of(bias) : std::span<float>(),
            .before = channels_view_of(before),
            .silu = silu,
            .cu_seqlens = cu_seqlens};
  }
};

Tensor short_convolution_forward(const Tensor& x, const Tensor& weight, const c10::optional<Tensor>& bias,
                                 const c10::optional<Tensor>& before, const c10::optional<Tensor>& cu_seqlens,
                                 bool silu) {
  RECORD_USER_SCOPE("ovq::short_convolution_forward");
  use_torch_threads();
  const ConvolutionTensors in(x, weight, bias, before, cu_seqlens, silu);
  const Tensor y = empty_output(x.sizes());
  kernels::short_convolution_forward(in.views(), channels_view_of(y));
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> short_convolution_backward(
    const Tensor& d_y_any, const Tensor& x, const Tensor& weight, const c10::optional<Tensor>& bias,
    const c10::optional<Tensor>& before, const c10::optional<Tensor>& cu_seqlens, bool silu) {
  RECORD_USER_SCOPE("ovq::short_convolution_backward");
  use_torch_threads();
  const ConvolutionTensors in(x, weight, bias, before, cu_seqlens, silu);
  const Tensor d_y = with_contiguous_rows(d_y_any), d_x = empty_output(x.sizes());
  const Tensor d_taps = at::empty(in.taps.sizes(), in.taps.options());
  const Tensor d_bias = bias ? at::empty(bias->sizes(), bias->options()) : absent(x);
  const Tensor d_before = before ? at::empty(before->sizes(), x.options()) : absent(x);
  kernels::short_convolution_backward(in.views(), channels_view_of(d_y),
                                      {.d_x = channels_view_of(d_x),
                                       .d_taps = span_of(d_taps),
                                       .d_bias = bias ? span_of(d_bias) : std::span<float>(),
                                       .d_before = channels_view_of(before ? d_before : Tensor())});
  return {d_x, d_taps.t().contiguous(), d_bias, d_before};
}

class ShortConvolutionFunction : public OnceDifferentiable<ShortConvolutionFunction> {
 public:
  static constexpr const char* kOp = kShortConvolution;

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const c10::optional<Tensor>& bias, const c10::optional<Tensor>& before,
                        const c10::optional<Tensor>& cu_seqlens, bool silu) {
    static const auto op = dispatched<decltype(short_convolution_forward)>("ovq::short_convolution_forward");
    context->save_for_backward({x, weight, or_undefined(bias), or_undefined(before), or_undefined(cu_seqlens)});
    context->saved_data["silu"] = silu;
    return call_dispatched(op, x, weight, bias, before, cu_seqlens, silu);
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(short_convolution_backward)>("ovq::short_convolution_backward");
    const variable_list s = context->get_saved_variables();
    const auto [d_x, d_weight, d_bias, d_before] =
        call_dispatched(op, gradients[0], s[0], s[1], optional(s[2]), optional(s[3]), optional(s[4]),
                        context->saved_data["silu"].toBool());
    return {d_x,      d_weight, s[2].defined() ? d_bias : Tensor(), s[3].defined() ? d_before : Tensor(),
            Tensor(), Tensor()};
  }
};

void check_convolution(const ShortConvolutionInputs& in) {
  const Tensor &x = in.x, &weight = in.weight;
  check(x.dim() == 3, kShortConvolution, "x has ", x.dim(), " dimensions; must have 3: [batch, time, channels]");
  check(weight.dim() == 2 && weight.sym_size(0) == x.sym_size(2) && fixed_size(weight, 1) >= 1, kShortConvolution,
        "weight has shape ", ShapeText{weight}, "; must be [", SizeText{x, 2}, ", width]");
  check(!in.bias.defined() || (in.bias.dim() == 1 && in.bias.sym_size(0) == x.sym_size(2)), kShortConvolution,
        "bias must have ", SizeText{x, 2}, " elements");
  if (!in.before.defined()) return;
  const int64_t kept = fixed_size(weight, 1) - 1;
  check(in.before.sym_sizes() == c10::SymIntArrayRef({x.sym_size(0), kept, x.sym_size(2)}), kShortConvolution,
        "before has shape ", ShapeText{in.before}, "; must be [", SizeText{x, 0}, ", ", kept, ", ", SizeText{x, 2},
        "]");
  check(!in.cu_seqlens || !in.cu_seqlens->defined(), kShortConvolution,
        "before is given with cu_seqlens; must be one or the other");
}

OutputAndState short_convolution_op(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                    const OptionalTensor& initial_state, bool return_state,
                                    const OptionalTensor& cu_seqlens, bool silu) {
  check_arguments(kShortConvolution, {{"x", x},
                                      {"weight", weight, kLikeFirst},
                                      {"bias", or_undefined(bias), kOptional | kLikeFirst},
                                      {"initial_state", or_undefined(initial_state), kOptional | kLikeFirst}});
  check_dims(kShortConvolution, "x", x, 3, "[batch, time, channels]");
  check_dims(kShortConvolution, "weight", weight, 2, "[channels, width]");
  const Activation activation = silu ? Activation::silu : Activation::none;
  const auto convolved = [&](const Tensor& part, const Tensor& before, const OptionalTensor& packed) {
    return short_convolution({.x = part,
                              .weight = weight,
                              .bias = or_undefined(bias),
                              .before = before,
                              .cu_seqlens = packed,
                              .activation = activation});
  };
  if (!initial_state && !return_state) return {convolved(x, {}, cu_seqlens), c10::nullopt};
  const int64_t width = fixed_size(weight, 1);
  const Sequences sequences{
      kShortConvolution, x, initial_state, cu_seqlens, return_state, {width - 1, fixed_size(x, 2)}};
  return sequences.run([&](const auto& cut, const Tensor& before, const Tensor&) -> RecurrenceResult {
    const Tensor part = cut(x);
    return {.o = convolved(part, before, {}), .state = inputs_after(part, before, width)};
  });
}

}  // namespace

Tensor short_convolution(const ShortConvolutionInputs& in) {
  check_convolution(in);
  check_has_kernels(kShortConvolution, "x", in.x);
  const at::ScalarType type = at::promote_types(in.x.scalar_type(), in.weight.scalar_type());
  const bool silu = in.activation == Activation::silu;
  if (is_empty(in.x)) {
    if (!is_traced({in.x, or_undefined(in.cu_seqlens)})) starts_of(kShortConvolution, in.x, in.cu_seqlens);
    return in.x.to(type).clone();
  }
  const Tensor x = float_rows(in.x), weight = in.weight.to(at::kFloat);
  const auto in_float = [](const Tensor& y) { return y.defined() ? OptionalTensor(y.to(at::kFloat)) : c10::nullopt; };
  const OptionalTensor bias = in_float(in.bias), before = in_float(in.before);
  const bool recorded = is_recorded({x, weight, or_undefined(bias), or_undefined(before), or_undefined(in.cu_seqlens)});
  const Tensor y = recorded ? ShortConvolutionFunction::apply(x, weight, bias, before, in.cu_seqlens, silu)
                            : short_convolution_forward(x, weight, bias, before, in.cu_seqlens, silu);
  return y.to(type);
}

Tensor inputs_after(const Tensor& x, const Tensor& before, int64_t width) {
  const int64_t kept = width - 1;
  const c10::SymInt time = x.sym_size(1);
  if (time >= kept) {  // a view would keep all of x alive
    return x.slice_symint(1, time - kept, time).clone(at::MemoryFormat::Contiguous);
  }
  const Tensor carried =
      before.defined() ? before : at::zeros_symint({x.sym_size(0), kept, x.sym_size(2)}, x.options());
  return at::cat({carried.slice_symint(1, time, kept), x}, 1);
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def("short_convolution(Tensor x, Tensor weight, Tensor? bias=None, " OVQ_SEQUENCES
              ", bool silu=False) -> (Tensor, Tensor?)",
              short_convolution_op);
#define OVQ_INPUTS "Tensor x, Tensor weight, Tensor? bias, Tensor? before, Tensor? cu_seqlens, bool silu"
  library.def("short_convolution_forward(" OVQ_INPUTS ") -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, short_convolution_forward));
  library.def("short_convolution_backward(Tensor d_y, " OVQ_INPUTS
              ") -> (Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_before)",
              torch::dispatch(c10::DispatchKey::CPU, short_convolution_backward));
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
