#include "ovq/nn/attention_heads.h"

#include <cmath>

#include "ovq/base/error.h"
#include "ovq/nn/parameters.h"
#include "ovq/ops/attention/checks.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/pointwise.h"

namespace ovq::nn {
namespace {

HeadOptions completed(const char* op, HeadOptions options) {
  check(options.width >= 1, op, "width is ", options.width, "; must be at least 1");
  check(options.heads >= 1, op, "heads is ", options.heads, "; must be at least 1");
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  check(options.kv_heads >= 1 && options.heads % options.kv_heads == 0, op, "kv_heads is ", options.kv_heads,
        "; must divide heads ", options.heads);
  if (options.head_dim == 0) {
    check(options.width % options.heads == 0, op, "heads is ", options.heads, "; must divide width ", options.width,
          ", or head_dim be given");
    options.head_dim = options.width / options.heads;
  }
  check(options.head_dim >= 1, op, "head_dim is ", options.head_dim, "; must be at least 1");
  check(std::abs(options.beta_init) <= kernels::kLargestBeta, op, "beta_init is ", options.beta_init,
        "; must be finite, and within ", -kernels::kLargestBeta, " and ", kernels::kLargestBeta);
  return options;
}

constexpr double kUnitNormEps = 1e-12;

}  // namespace

Tensor unit_norm(const Tensor& x) { return ops::l2_norm(x, kUnitNormEps); }

AttentionHeads::AttentionHeads(const char* op, const HeadOptions& options) : op_(op), heads_(completed(op, options)) {
  const int64_t query_width = heads_.heads * heads_.head_dim, key_width = heads_.kv_heads * heads_.head_dim;
  q_proj = register_module("q_proj", make_projection(heads_.width, query_width));
  k_proj = register_module("k_proj", make_projection(heads_.width, key_width));
  v_proj = register_module("v_proj", make_projection(heads_.width, key_width));
  o_proj = register_module("o_proj", make_projection(query_width, heads_.width));
  b = register_parameter("b", at::full({heads_.heads}, heads_.beta_init));
  if (heads_.convolution) {
    conv_q = register_module("conv_q", ShortConvolution(ShortConvolutionOptions{query_width}));
    conv_k = register_module("conv_k", ShortConvolution(ShortConvolutionOptions{key_width}));
  }
  if (heads_.value_shift) alpha = register_parameter("alpha", at::zeros({}));
}

StateLayout AttentionHeads::head_layout() const {
  StateLayout layout(op_);
  layout.add("heads", heads_.heads).add("kv_heads", heads_.kv_heads).add("head_dim", heads_.head_dim);
  layout.add("value_shift", heads_.value_shift).add("convolution", heads_.convolution);
  return layout;
}

AttentionHeads::Inputs AttentionHeads::attention_inputs(const Tensor& x, const MixerState* state,
                                                        const OptionalTensor& cu_seqlens,
                                                        const c10::optional<ops::RotaryOptions>& rotation) {
  check_width(op_, x, heads_.width);
  const auto taps = [&](ShortConvolution& convolution) { return heads_.convolution ? convolution->weight : Tensor(); };
  const int64_t dim = heads_.head_dim, key_width = heads_.kv_heads * dim;
  Tensor angles;
  if (rotation) angles = ops::rotary_table(at::empty({1, x.size(1), 1, dim}, x.options()), *rotation);
  ops::ProjectedPart q{.channels = heads_.heads * dim,
                       .head_dim = dim,
                       .taps = taps(conv_q),
                       .unit_eps = kUnitNormEps,
                       .angles = angles};
  ops::ProjectedPart k{
      .channels = key_width, .head_dim = dim, .taps = taps(conv_k), .unit_eps = kUnitNormEps, .angles = angles};
  ops::ProjectedPart v{.channels = key_width, .head_dim = dim};
  if (heads_.value_shift) {
    k.shift = kernels::Shift::previous;
    v.shift = kernels::Shift::mean;
    v.share = ops::sigmoid(alpha);
  }
  const ops::ProjectionsInputs inputs{.x = x,
                                      .weights = {q_proj->weight, k_proj->weight, v_proj->weight},
                                      .parts = {q, k, v},
                                      .cu_seqlens = cu_seqlens};
  const auto split = [&](const Tensor& rows, int64_t heads) { return rows.view({x.size(0), x.size(1), heads, dim}); };
  Inputs result;
  std::vector<Tensor> y;
  if (state == nullptr || (!heads_.convolution && !heads_.value_shift)) {
    y = ops::projections(inputs);
  } else {
    const auto row = [&](const char* name) {
      const Tensor shifted = state->tensor(name);
      return shifted.defined() ? shifted.flatten(2) : shifted;
    };
    result.carried = {{.inputs = state->tensor("conv_q"), .row = {}},
                      {.inputs = state->tensor("conv_k"), .row = row("shift_k")},
                      {.inputs = {}, .row = row("shift_v")}};
    y = ops::projections(inputs, result.carried);
  }
  result.q = split(y[0], heads_.heads);
  result.k = split(y[1], heads_.kv_heads);
  result.v = split(y[2], heads_.kv_heads);
  return result;
}

void AttentionHeads::carry_on(const Inputs& inputs, MixerState& state) const {
  if (inputs.carried.empty()) return;
  const auto keep = [&](const char* name, const Tensor& x) {
    if (x.defined()) state.tensors[name] = x;
  };
  const auto keep_row = [&](const char* name, const Tensor& row) {
    if (row.defined()) keep(name, row.view({row.size(0), 1, heads_.kv_heads, heads_.head_dim}));
  };
  keep("conv_q", inputs.carried[0].inputs);
  keep("conv_k", inputs.carried[1].inputs);
  keep_row("shift_k", inputs.carried[1].row);
  keep_row("shift_v", inputs.carried[2].row);
}

int64_t AttentionHeads::input_state_bytes(int64_t tokens) const {
  if (tokens == 0) return 0;
  const int64_t query_width = heads_.heads * heads_.head_dim, key_width = heads_.kv_heads * heads_.head_dim;
  int64_t floats = 0;
  if (heads_.convolution) floats += (conv_q->options().width - 1) * (query_width + key_width);
  if (heads_.value_shift) floats += 2 * key_width;
  return floats * static_cast<int64_t>(sizeof(float));
}

Tensor AttentionHeads::beta() const {
  const Tensor& learned = b;
  const double root = std::sqrt(static_cast<double>(heads_.head_dim));
  if (ops::needs_gradient({learned}) || learned.scalar_type() != at::kFloat || !learned.is_contiguous()) {
    return learned * root;
  }
  const Tensor factors = at::empty(learned.sizes(), learned.options());  // torch takes microseconds for a few numbers
  const float* const from = learned.data_ptr<float>();
  float* const to = factors.data_ptr<float>();
  for (int64_t head = 0; head < learned.numel(); ++head) to[head] = from[head] * static_cast<float>(root);
  return factors;
}

Tensor AttentionHeads::output(const Tensor& o) { return o_proj(o.flatten(2)); }

}  // namespace ovq::nn
