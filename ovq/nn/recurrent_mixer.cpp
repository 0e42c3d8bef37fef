#include "ovq/nn/recurrent_mixer.h"

#include "ovq/nn/parameters.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/pointwise.h"

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

std::vector<Tensor> RecurrentMixer::projected(const RecurInputs& in, const ops::ProjectionsInputs& inputs,
                                              const std::vector<const char*>& names) const {
  if (in.state == nullptr) return ops::projections(inputs);
  std::vector<ops::CarriedRows> carried(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != nullptr) carried[i].inputs = in.state->tensor(names[i]);
  }
  std::vector<Tensor> y = ops::projections(inputs, carried);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != nullptr) in.carried.emplace_back(names[i], carried[i].inputs);
  }
  return y;
}

RecurrentMixer::Heads RecurrentMixer::query_key_value(const RecurInputs& in, const std::vector<Projection>& others) {
  ops::ProjectionsInputs inputs{.x = in.x, .cu_seqlens = in.cu_seqlens};
  std::vector<const char*> names;
  const auto add = [&](const Projection& projection, const ShortConvolution& convolution, const char* name,
                       int64_t unit) {
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
    names.push_back(convolution.is_empty() ? nullptr : name);
  };
  add(q_proj_, conv_q_, "conv_q", options_.key_dim);
  add(k_proj_, conv_k_, "conv_k", options_.key_dim);
  add(v_proj_, conv_v_, "conv_v", 0);
  for (const Projection& other : others) add(other, ShortConvolution(nullptr), nullptr, 0);
  std::vector<Tensor> y = projected(in, inputs, names);
  const auto split = [&](const Tensor& rows, int64_t dim) { return rows.unflatten(-1, {options_.heads, dim}); };
  return {.q = split(y[0], options_.key_dim),
          .k = split(y[1], options_.key_dim),
          .v = split(y[2], options_.value_dim),
          .others = {y.begin() + 3, y.end()}};
}

Tensor RecurrentMixer::normalised(const Tensor& o, const Tensor& gate) {
  const Tensor y = norm->forward(o).flatten(2);
  return gate.defined() ? y * ops::silu(gate) : y;
}

Tensor RecurrentMixer::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  check_width(op_, x, options_.width);
  std::vector<std::pair<const char*, Tensor>> carried;
  const Recurred recurred = recur({.x = x,
                                   .state = state,
                                   .cu_seqlens = cu_seqlens,
                                   .before = state == nullptr ? Tensor() : state->tensor("state"),
                                   .starts = ops::starts_of(op_, x, cu_seqlens),
                                   .carried = carried});
  if (state != nullptr) {
    for (const auto& [name, inputs] : carried) state->tensors[name] = inputs;
    state->tensors["state"] = recurred.result.state;
    state->position += x.size(1);
  }
  return output_->forward(normalised(recurred.result.o, recurred.gate));
}

}  // namespace ovq::nn
