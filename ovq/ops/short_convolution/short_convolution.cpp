#include "ovq/ops/short_convolution/short_convolution.h"

#include <algorithm>

#include "ovq/ops/recurrence/run.h"

namespace ovq::kernels {

namespace recurrence {
namespace {

constexpr const char* kShortConvolution = "short_convolution";

struct ConvolutionPlan {
  ConvolutionCall call;
  std::vector<ConvolutionBlock> blocks;  // one after the other within each range of channels
};

ConvolutionPlan plan_convolution(const ShortConvolutionInputs& in) {
  const auto& [x, taps, bias, before, silu, cu_seqlens] = in;
  check(x.dim >= 1, kShortConvolution, "x has ", x.dim, " channels; must be at least 1");
  check_shape(kShortConvolution, "x", x, x.batch, x.time, 1, x.dim);
  check(!taps.empty() && static_cast<int64_t>(taps.size()) % x.dim == 0, kShortConvolution, "taps has ", taps.size(),
        " elements; must be a multiple of x's ", x.dim, " channels");
  check(bias.empty() || static_cast<int64_t>(bias.size()) == x.dim, kShortConvolution, "bias has ", bias.size(),
        " elements; must have ", x.dim);
  const int64_t width = static_cast<int64_t>(taps.size()) / x.dim;
  check_shape(kShortConvolution, "before", before, x.batch, width - 1, 1, x.dim, true);
  check(before.data == nullptr || cu_seqlens.empty(), kShortConvolution,
        "before is given with cu_seqlens; must be one or the other");
  ConvolutionPlan plan{
      .call = {.x = x, .taps = taps.data(), .bias = bias.data(), .before = before, .width = width, .silu = silu},
      .blocks = {}};
  const std::vector<Sequence> sequences = check_sequences(kShortConvolution, x.batch, x.time, cu_seqlens);
  for (int64_t channel = 0; channel < x.dim; channel += kConvolutionChannels) {
    for (const Sequence& sequence : sequences) {
      for (int64_t row = 0; row < sequence.length; row += kConvolutionRows) {
        plan.blocks.push_back({.sequence = {sequence.batch, sequence.first, sequence.length},
                               .first_row = row,
                               .rows = std::min(kConvolutionRows, sequence.length - row),
                               .first_channel = channel,
                               .channels = std::min(kConvolutionChannels, x.dim - channel)});
      }
    }
  }
  return plan;
}

template <class Body>
void for_each_block(const ConvolutionPlan& plan, const Body& body) {
  constexpr int64_t kWorthThreads = 1 << 15;
  int64_t elements = 0;
  for (const ConvolutionBlock& block : plan.blocks) elements += block.rows * block.channels;
  const int threads = elements < kWorthThreads ? 1 : max_threads();
  const int64_t scratch = recurrence_kernels().convolution_scratch(plan.call);
  std::vector<Scratch> own(threads);
  parallel_for(static_cast<int64_t>(plan.blocks.size()), threads,
               [&](int64_t i, int thread) { body(plan.blocks[i], own[thread].memory.ensure(scratch)); });
}

// Sums the blocks' gradients of taps and bias in the order of the blocks.
void add_blocks(const ConvolutionPlan& plan, const ShortConvolutionGradients& gradients) {
  const int64_t channels = plan.call.x.dim, width = plan.call.width;
  std::vector<double> totals((width + 1) * channels, 0.0);
  for (const ConvolutionBlock& block : plan.blocks) {
    for (int64_t j = 0; j <= width; ++j) {
      double* const to = totals.data() + j * channels + block.first_channel;
      const float* const from = block.sums + j * kConvolutionChannels;
      for (int64_t c = 0; c < block.channels; ++c) to[c] += static_cast<double>(from[c]);
    }
  }
  const auto store = [&](std::span<float> to, int64_t first) {
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(totals[first + i]);
  };
  store(gradients.d_taps, 0);
  store(gradients.d_bias, width * channels);
}

}  // namespace
}  // namespace recurrence

void short_convolution_forward(const ShortConvolutionInputs& in, View<float> y) {
  using namespace recurrence;
  ConvolutionPlan plan = plan_convolution(in);
  check_shape(kShortConvolution, "y", y, in.x.batch, in.x.time, 1, in.x.dim);
  plan.call.y = y;
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_block(plan, [&](const ConvolutionBlock& block, float* scratch) {
    kernels.convolution_forward(plan.call, block, scratch);
  });
}

void short_convolution_backward(const ShortConvolutionInputs& in, View<const float> d_y,
                                const ShortConvolutionGradients& gradients) {
  using namespace recurrence;
  ConvolutionPlan plan = plan_convolution(in);
  const View<const float>& x = in.x;
  check_shape(kShortConvolution, "d_y", d_y, x.batch, x.time, 1, x.dim);
  check_shape(kShortConvolution, "d_x", gradients.d_x, x.batch, x.time, 1, x.dim);
  check_shape(kShortConvolution, "d_before", gradients.d_before, x.batch, plan.call.width - 1, 1, x.dim, true);
  check(gradients.d_taps.size() == in.taps.size(), kShortConvolution, "d_taps has ", gradients.d_taps.size(),
        " elements; must have ", in.taps.size());
  check(gradients.d_bias.empty() || static_cast<int64_t>(gradients.d_bias.size()) == x.dim, kShortConvolution,
        "d_bias has ", gradients.d_bias.size(), " elements; must have ", x.dim);
  plan.call.d_y = d_y;
  plan.call.d_x = gradients.d_x;
  plan.call.d_before = gradients.d_before;
  const int64_t sums = (plan.call.width + 1) * kConvolutionChannels;
  const Buffer<float> parts(static_cast<int64_t>(plan.blocks.size()) * sums, Lifetime::scratch);
  for (size_t i = 0; i < plan.blocks.size(); ++i) plan.blocks[i].sums = parts.data() + static_cast<int64_t>(i) * sums;
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_block(plan, [&](const ConvolutionBlock& block, float* scratch) {
    kernels.convolution_backward(plan.call, block, scratch);
  });
  add_blocks(plan, gradients);
  if (x.time == 0 && gradients.d_before.data != nullptr) {
    for (int64_t b = 0; b < x.batch; ++b) {
      for (int64_t t = 0; t < plan.call.width - 1; ++t) std::fill_n(gradients.d_before.row(b, t, 0), x.dim, 0.0f);
    }
  }
}

}  // namespace ovq::kernels
