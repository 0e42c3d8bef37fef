#include "ovq/nn/attention_heads.h"

#include <cmath>

#include "ovq/base/error.h"
#include "ovq/kernels/checks.h"
#include "ovq/nn/parameters.h"
#include "ovq/ops/once_differentiable.h"
#include "ovq/ops/packed.h"
#include "ovq/ops/pointwise.h"
#include "ovq/ops/projections.h"
#include "ovq/ops/rms_norm.h"
#include "ovq/ops/row_loops.h"
#include "ovq/ops/stored_weights.h"

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

AttentionHeads::Inputs AttentionHeads::fused_inputs(const Tensor& x, const OptionalTensor& cu_seqlens,
                                                    const c10::optional<ops::RotaryOptions>& rotation) {
  const std::vector<Tensor> weights = {q_proj->weight, k_proj->weight, v_proj->weight};
  if (x.numel() == 0 || !ops::has_row_kernels({x}) || !ops::has_stored_kernels(weights)) {
    return {};
  }
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
  const std::vector<Tensor> y =
      ops::projections({.x = x, .weights = weights, .parts = {q, k, v}, .cu_seqlens = cu_seqlens});
  const auto split = [&](const Tensor& rows, int64_t heads) { return rows.view({x.size(0), x.size(1), heads, dim}); };
  return {split(y[0], heads_.heads), split(y[1], heads_.kv_heads), split(y[2], heads_.kv_heads)};
}

AttentionHeads::Inputs AttentionHeads::attention_inputs(const Tensor& x, MixerState* state,
                                                        const OptionalTensor& cu_seqlens,
                                                        const c10::optional<ops::RotaryOptions>& rotation) {
  check_width(op_, x, heads_.width);
  const bool alone = !heads_.convolution && !heads_.value_shift;  // no token depends on earlier ones
  if (fuses_inputs && (state == nullptr || alone)) {
    if (const Inputs in = fused_inputs(x, cu_seqlens, rotation); in.q.defined()) return in;
  }
  const auto convolved = [&](ShortConvolution& convolution, const char* name, const Tensor& y) {
    if (!heads_.convolution) return y;
    return state == nullptr ? convolution->forward(y, cu_seqlens) : convolution->forward(y, state->tensors[name]);
  };
  const auto split = [&](const Tensor& y, int64_t heads) { return y.unflatten(-1, {heads, heads_.head_dim}); };
  Tensor q = unit_norm(split(convolved(conv_q, "conv_q", q_proj(x)), heads_.heads));
  Tensor k = unit_norm(split(convolved(conv_k, "conv_k", k_proj(x)), heads_.kv_heads));
  Tensor v = split(v_proj(x), heads_.kv_heads);
  if (heads_.value_shift && x.size(1) > 0) {
    const Tensor share = ops::sigmoid(alpha);
    k = shifted(k, "shift_k", state, cu_seqlens);
    v = share * shifted(v, "shift_v", state, cu_seqlens) + (1 - share) * v;
  }
  if (rotation) {
    const Tensor angles = ops::rotary_table(q, *rotation);
    q = ops::rotate(q, angles);
    k = ops::rotate(k, angles);
  }
  return {q, k, v};
}

Tensor AttentionHeads::shifted(const Tensor& x, const char* name, MixerState* state,
                               const OptionalTensor& cu_seqlens) const {
  const int64_t time = x.size(1);
  Tensor before = x.narrow(1, 0, 1);
  if (state != nullptr) {
    Tensor& last = state->tensors[name];
    if (last.defined()) before = last.to(x.scalar_type());  // autocast may have begun or ended since
    last = x.narrow(1, time - 1, 1).clone();                // a view would keep all of x in memory
  }
  const Tensor all = at::cat({before, x}, 1);
  const std::vector<int64_t> offsets = ops::offsets_of(op_, cu_seqlens);
  if (offsets.empty()) return all.narrow(1, 0, time);
  const Tensor from = at::arange(time, at::kLong);
  for (const auto& sequence : kernels::check_sequences(op_, x.size(0), time, offsets)) {
    if (sequence.length > 0) from[sequence.first] += 1;
  }
  return all.index_select(1, from);
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
  if (ops::needs_gradient({learned}) || !ops::has_row_kernels({learned}) || !learned.is_contiguous()) {
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
