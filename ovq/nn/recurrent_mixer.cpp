#include "ovq/nn/recurrent_mixer.h"

#include "ovq/nn/parameters.h"
#include "ovq/ops/packed.h"
#include "ovq/ops/pointwise.h"
#include "ovq/ops/projections.h"
#include "ovq/ops/rms_norm.h"
#include "ovq/ops/row_loops.h"
#include "ovq/ops/stored_weights.h"

namespace ovq::nn {
namespace {

constexpr double kUnitEps = 1e-6;  // of the norms of queries and keys

}  // namespace

RecurrentMixer::RecurrentMixer(const char* op, const RecurrentOptions& options) : op_(op), options_(options) {
  check_positive(op, "width", options.width);
  check_positive(op, "heads", options.heads);
  check_positive(op, "key_dim", options.key_dim);
  check_positive(op, "value_dim", options.value_dim);
  check_positive(op, "conv_width", options.conv_width);
}

Projection RecurrentMixer::add_projection(const char* name, int64_t outputs, bool bias) {
  return register_module(name, make_projection(options_.width, outputs, bias));
}

void RecurrentMixer::add_query_key_value() {
  q_proj_ = add_projection("q_proj", options_.heads * options_.key_dim);
  k_proj_ = add_projection("k_proj", options_.heads * options_.key_dim);
  v_proj_ = add_projection("v_proj", options_.heads * options_.value_dim);
}

void RecurrentMixer::add_output(const char* name) {
  output_ = register_module(name, make_projection(options_.heads * options_.value_dim, options_.width));
}

ShortConvolution RecurrentMixer::add_convolution(const char* name, int64_t channels, bool bias) {
  convolved_channels_ += channels;
  const ShortConvolutionOptions options{
      .channels = channels, .width = options_.conv_width, .bias = bias, .activation = Activation::silu};
  return register_module(name, ShortConvolution(options));
}

void RecurrentMixer::add_query_key_convolutions() {
  conv_q_ = add_convolution("conv_q", options_.heads * options_.key_dim);
  conv_k_ = add_convolution("conv_k", options_.heads * options_.key_dim);
}

void RecurrentMixer::add_value_convolution() {
  conv_v_ = add_convolution("conv_v", options_.heads * options_.value_dim);
}

void RecurrentMixer::add_norm(int64_t size, double eps, int64_t groups) {
  norm = register_module("norm", RMSNorm(size, eps, groups));
}

StateLayout RecurrentMixer::head_layout(const char* kind) const {
  StateLayout layout(kind);
  layout.add("heads", options_.heads).add("key_dim", options_.key_dim).add("value_dim", options_.value_dim);
  layout.add("conv_width", options_.conv_width);
  return layout;
}

int64_t RecurrentMixer::state_elements() const { return options_.heads * options_.key_dim * options_.value_dim; }

int64_t RecurrentMixer::state_bytes(int64_t, kernels::StateDtype) const {
  const int64_t elements = state_elements() + (options_.conv_width - 1) * convolved_channels_;
  return elements * static_cast<int64_t>(sizeof(float));
}

Tensor RecurrentMixer::convolved(const RecurInputs& in, const char* name, ShortConvolution& convolution,
                                 const Tensor& y) const {
  if (in.state != nullptr) return convolution->forward(y, in.state->tensors[name]);
  return convolution->forward(y, in.cu_seqlens);
}

RecurrentMixer::Heads RecurrentMixer::fused_query_key_value(const RecurInputs& in,
                                                            const std::vector<Projection>& others) {
  if (in.state != nullptr || in.x.numel() == 0) return {};
  ops::ProjectionsInputs inputs{.x = in.x, .cu_seqlens = in.cu_seqlens};
  const auto add = [&](const Projection& projection, const ShortConvolution& convolution, int64_t unit) {
    inputs.weights.push_back(projection->weight);
    inputs.biases.push_back(projection->bias);
    ops::ProjectedPart part{.channels = inputs.weights.back().size(0)};
    if (!convolution.is_empty()) {
      part.taps = convolution->weight;
      part.taps_bias = convolution->bias;
      part.silu = convolution->options().activation == Activation::silu;
    }
    if (unit > 0) {
      part.head_dim = unit;
      part.unit_eps = kUnitEps;
    }
    inputs.parts.push_back(part);
  };
  add(q_proj_, conv_q_, options_.key_dim);
  add(k_proj_, conv_k_, options_.key_dim);
  add(v_proj_, conv_v_, 0);
  for (const Projection& other : others) add(other, ShortConvolution(nullptr), 0);
  if (!ops::has_row_kernels({in.x}) || !ops::has_stored_kernels(inputs.weights)) return {};
  std::vector<Tensor> y = ops::projections(inputs);
  const auto split = [&](const Tensor& rows, int64_t dim) { return rows.unflatten(-1, {options_.heads, dim}); };
  return {.q = split(y[0], options_.key_dim),
          .k = split(y[1], options_.key_dim),
          .v = split(y[2], options_.value_dim),
          .others = {y.begin() + 3, y.end()}};
}

RecurrentMixer::Heads RecurrentMixer::query_key_value(const RecurInputs& in, const std::vector<Projection>& others) {
  if (Heads fused = fused_query_key_value(in, others); fused.q.defined()) return fused;
  const auto heads = [&](Projection& projection, ShortConvolution& convolution, const char* name, int64_t dim) {
    const Tensor y = projection->forward(in.x);
    return (convolution ? convolved(in, name, convolution, y) : y).unflatten(-1, {options_.heads, dim});
  };
  Heads result{.q = ops::l2_norm(heads(q_proj_, conv_q_, "conv_q", options_.key_dim), kUnitEps),
               .k = ops::l2_norm(heads(k_proj_, conv_k_, "conv_k", options_.key_dim), kUnitEps),
               .v = heads(v_proj_, conv_v_, "conv_v", options_.value_dim)};
  for (Projection other : others) result.others.push_back(other->forward(in.x));
  return result;
}

Tensor RecurrentMixer::normalised(const Tensor& o, const Tensor& gate) {
  const Tensor y = norm->forward(o).flatten(2);
  return gate.defined() ? y * ops::silu(gate) : y;
}

Tensor RecurrentMixer::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  check_width(op_, x, options_.width);
  StateRollback rollback(state);
  Tensor before;
  if (state != nullptr) {
    if (const auto at = state->tensors.find("state"); at != state->tensors.end()) before = at->second;
  }
  const Recurred recurred = recur({.x = x,
                                   .state = state,
                                   .cu_seqlens = cu_seqlens,
                                   .before = before,
                                   .starts = ops::starts_of(op_, x, cu_seqlens)});
  rollback.keep();
  if (state != nullptr) {
    state->tensors["state"] = recurred.result.state;
    state->position += x.size(1);
  }
  return output_->forward(normalised(recurred.result.o, recurred.gate));
}

}  // namespace ovq::nn
