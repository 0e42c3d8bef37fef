#include "ovq/ops/short_convolution/torch.h"

#include <torch/library.h>

#include <span>
#include <tuple>
#include <vector>

#include "ovq/ops/products/torch.h"
#include "ovq/ops/recurrence/torch.h"
#include "ovq/ops/short_convolution/short_convolution.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/pointwise.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kShortConvolution = "short_convolution";
constexpr int64_t kChannels = 64;    // a thread takes this many through all of time
constexpr int64_t kRowsPerSum = 64;  // weight gradients are summed in pieces: less rounding

using Sequences = std::vector<kernels::Sequence>;

// Rows of [B, T, C] by time, those of `before` [B, width - 1, C] at negative ones, and `none` where there is nothing.
template <class T>
class Rows {
 public:
  Rows(const Tensor& x, const Tensor& before, const kernels::Sequence& sequence, int64_t channel, T* none)
      : x_(x.data_ptr<T>() + sequence.batch * x.stride(0) + sequence.first * x.stride(1) + channel),
        stride_(x.stride(1)),
        none_(none) {
    if (before.defined()) {
      before_ = before.data_ptr<T>() + sequence.batch * before.stride(0) + before.size(1) * before.stride(1) + channel;
      before_stride_ = before.stride(1);
    }
  }

  T* operator[](int64_t time) const {
    if (time >= 0) return x_ + time * stride_;
    return before_ != nullptr ? before_ + time * before_stride_ : none_;
  }

 private:
  T* x_;
  int64_t stride_;
  T* before_ = nullptr;
  int64_t before_stride_ = 0;
  T* none_;
};

template <class T>
void accumulate(T* to, const T* a, const T* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += a[i] * b[i];
}

// taps: the weight as [width, C]
template <class T>
void convolve(const Tensor& x, const Tensor& taps, const Tensor& bias, const Tensor& before, const Sequences& sequences,
              const Tensor& y) {
  const int64_t channels = x.size(2), width = taps.size(0);
  parallel_blocks(channels, kChannels, x.size(0) * x.size(1) * width, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    T zeros[kChannels] = {}, offset[kChannels] = {};
    if (bias.defined()) std::copy_n(bias.data_ptr<T>() + begin, n, offset);
    for (const kernels::Sequence& sequence : sequences) {
      const Rows<T> from(x, before, sequence, begin, zeros), to(y, {}, sequence, begin, nullptr);
      for (int64_t t = 0; t < sequence.length; ++t) {
        T sums[kChannels];
        std::copy_n(offset, n, sums);
        for (int64_t j = 0; j < width; ++j) {
          accumulate(sums, taps.data_ptr<T>() + j * channels + begin, from[t - width + 1 + j], n);
        }
        std::copy_n(sums, n, to[t]);
      }
    }
  });
}

// d_x and d_before start as zeros; d_taps [width, C] and d_bias are written. d_before and d_bias may be undefined.
template <class T>
void convolve_backward(const Tensor& d_y, const Tensor& x, const Tensor& taps, const Tensor& before,
                       const Sequences& sequences, const Tensor& d_x, const Tensor& d_before, const Tensor& d_taps,
                       const Tensor& d_bias) {
  const int64_t channels = x.size(2), width = taps.size(0);
  parallel_blocks(channels, kChannels, 2 * x.size(0) * x.size(1) * width, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    T zeros[kChannels] = {}, nowhere[kChannels] = {}, ones[kChannels];
    std::fill_n(ones, kChannels, T(1));
    std::vector<T> piece((width + 1) * kChannels, T(0)), total(piece);  // taps, then bias
    const auto add_piece = [&] {
      for (size_t i = 0; i < total.size(); ++i) total[i] += piece[i];
      std::fill(piece.begin(), piece.end(), T(0));
    };
    for (const kernels::Sequence& sequence : sequences) {
      const Rows<T> from(x, before, sequence, begin, zeros), gradient(d_y, {}, sequence, begin, nullptr),
          to(d_x, d_before, sequence, begin, nowhere);
      for (int64_t t = 0; t < sequence.length; ++t) {
        const T* const g = gradient[t];
        for (int64_t j = 0; j < width; ++j) {
          const int64_t source = t - width + 1 + j;
          accumulate(&piece[j * kChannels], g, from[source], n);
          accumulate(to[source], g, taps.data_ptr<T>() + j * channels + begin, n);
        }
        if (d_bias.defined()) accumulate(&piece[width * kChannels], g, ones, n);
        if (t % kRowsPerSum == kRowsPerSum - 1) add_piece();
      }
      add_piece();
    }
    for (int64_t j = 0; j < width; ++j) {
      std::copy_n(&total[j * kChannels], n, d_taps.data_ptr<T>() + j * channels + begin);
    }
    if (d_bias.defined()) std::copy_n(&total[width * kChannels], n, d_bias.data_ptr<T>() + begin);
  });
}

class ShortConvolutionFunction : public OnceDifferentiable<ShortConvolutionFunction> {
 public:
  static constexpr const char* kOp = kShortConvolution;

  static Tensor forward(AutogradContext* context, const Tensor& x_any, const Tensor& weight,
                        const c10::optional<Tensor>& bias_any, const c10::optional<Tensor>& before_any,
                        const std::vector<int64_t>& cu_seqlens) {
    RECORD_USER_SCOPE("ovq::short_convolution_forward");
    const Tensor x = with_contiguous_rows(x_any), taps = weight.t().contiguous();
    const Tensor bias = bias_any ? bias_any->contiguous() : Tensor();
    const Tensor before = before_any ? with_contiguous_rows(*before_any) : Tensor();
    const Tensor y = at::empty(x.sizes(), x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), kShortConvolution, [&] {
      convolve<scalar_t>(x, taps, bias, before,
                         kernels::check_sequences(kShortConvolution, x.size(0), x.size(1), cu_seqlens), y);
    });
    context->save_for_backward({x, taps, before});
    context->saved_data["bias"] = bias.defined();
    context->saved_data["cu_seqlens"] = cu_seqlens;
    return y;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::short_convolution_backward");
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &taps = saved[1], &before = saved[2];
    const std::vector<int64_t> cu_seqlens = context->saved_data["cu_seqlens"].toIntVector();
    const Tensor d_y = with_contiguous_rows(gradients[0]), d_x = at::zeros(x.sizes(), x.options());
    const Tensor d_before = before.defined() ? at::zeros(before.sizes(), x.options()) : Tensor();
    const Tensor d_taps = at::empty(taps.sizes(), x.options());
    const Tensor d_bias = context->saved_data["bias"].toBool() ? at::empty({x.size(2)}, x.options()) : Tensor();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), kShortConvolution, [&] {
      convolve_backward<scalar_t>(d_y, x, taps, before,
                                  kernels::check_sequences(kShortConvolution, x.size(0), x.size(1), cu_seqlens), d_x,
                                  d_before, d_taps, d_bias);
    });
    return {d_x, d_taps.t(), d_bias, d_before, Tensor()};
  }
};

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

class FusedShortConvolution : public OnceDifferentiable<FusedShortConvolution> {
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

Tensor before_or_zeros(const Tensor& x, const Tensor& before, int64_t width) {
  return before.defined() ? before : at::zeros_symint({x.sym_size(0), width - 1, x.sym_size(2)}, x.options());
}

// Shifted slices times rows of the weight.
Tensor plain_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before) {
  const int64_t width = fixed_size(weight, 1);
  const c10::SymInt time = x.sym_size(1);
  const Tensor all = at::cat({before_or_zeros(x, before, width), x}, 1);
  Tensor y = bias.defined() ? bias : at::zeros_symint({x.sym_size(2)}, x.options());
  for (int64_t j = 0; j < width; ++j) y = y + all.slice_symint(1, j, time + j) * weight.select(1, j);
  return y;
}

}  // namespace

Tensor short_convolution(const ShortConvolutionInputs& inputs) {
  const auto& [x, weight, bias, before, packed, activation] = inputs;
  check(x.dim() == 3, kShortConvolution, "x has ", x.dim(), " dimensions; must have 3: [batch, time, channels]");
  check(weight.dim() == 2 && weight.sym_size(0) == x.sym_size(2) && fixed_size(weight, 1) >= 1, kShortConvolution,
        "weight has shape ", ShapeText{weight}, "; must be [", SizeText{x, 2}, ", width]");
  check(!bias.defined() || (bias.dim() == 1 && bias.sym_size(0) == x.sym_size(2)), kShortConvolution, "bias must have ",
        SizeText{x, 2}, " elements");
  const bool traced = is_traced({x, weight, or_undefined(packed)}), given = packed && packed->defined();
  if (before.defined()) {
    const int64_t kept = fixed_size(weight, 1) - 1;
    check(before.sym_sizes() == c10::SymIntArrayRef({x.sym_size(0), kept, x.sym_size(2)}), kShortConvolution,
          "before has shape ", ShapeText{before}, "; must be [", SizeText{x, 0}, ", ", kept, ", ", SizeText{x, 2}, "]");
    check(!given, kShortConvolution, "before is given with cu_seqlens; must be one or the other");
  }
  const bool silu = activation == Activation::silu;
  const bool loops = !is_empty(x) && runs_loops(x) && weight.scalar_type() == x.scalar_type();
  if (loops && x.scalar_type() == at::kFloat && runs_fused(kShortConvolution, x)) {
    return FusedShortConvolution::apply(x, weight, optional(bias), optional(before), packed, silu);
  }
  const std::vector<int64_t> cu_seqlens = offsets_of(kShortConvolution, packed);
  if (!traced) kernels::check_sequences(kShortConvolution, x.size(0), x.size(1), cu_seqlens);
  const auto plain = [&] {
    if (loops && !traced)
      return ShortConvolutionFunction::apply(x, weight, optional(bias), optional(before), cu_seqlens);
    if (cu_seqlens.empty()) return plain_convolution(x, weight, bias, before);
    return for_each_sequence(kShortConvolution, x, cu_seqlens,
                             [&](const Tensor& part) { return plain_convolution(part, weight, bias, {}); });
  };
  return silu ? ops::silu(plain()) : plain();
}

Tensor inputs_after(const Tensor& x, const Tensor& before, int64_t width) {
  const int64_t kept = width - 1;
  const c10::SymInt time = x.sym_size(1);
  if (time >= kept) {  // a view would keep all of x alive
    return x.slice_symint(1, time - kept, time).clone(at::MemoryFormat::Contiguous);
  }
  const Tensor all = at::cat({before_or_zeros(x, before, width), x}, 1);
  return all.slice_symint(1, time, time + kept).clone(at::MemoryFormat::Contiguous);
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
#define OVQ_INPUTS "Tensor x, Tensor weight, Tensor? bias, Tensor? before, Tensor? cu_seqlens, bool silu"
  library.def("short_convolution_forward(" OVQ_INPUTS ") -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, short_convolution_forward));
  library.def("short_convolution_backward(Tensor d_y, " OVQ_INPUTS
              ") -> (Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_before)",
              torch::dispatch(c10::DispatchKey::CPU, short_convolution_backward));
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
