// Blocks of rows and channels of the short convolution (see short_convolution.h). A block is first copied to contiguous
// scratch memory together with the rows before it, with channels padded to whole vectors.
#if defined(OVQ_OPS_SHORT_CONVOLUTION_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_SHORT_CONVOLUTION_KERNEL_INL_H_
#undef OVQ_OPS_SHORT_CONVOLUTION_KERNEL_INL_H_
#else
#define OVQ_OPS_SHORT_CONVOLUTION_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "ovq/ops/recurrence/decays-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

struct ConvolutionScratch {
  ConvolutionScratch(const ConvolutionCall& call, float* data) : stride(padded(kConvolutionChannels)) {
    const int64_t halo = call.width - 1;
    Carver carver(data);
    x = carver.take(kConvolutionRows + 2 * halo, stride);
    y = carver.take(kConvolutionRows + halo, stride);
    taps = carver.take(call.width, stride);
    bias = carver.take(1, stride);
    size = carver.used();
  }
  int64_t stride;
  float *x, *y, *taps, *bias;
  int64_t size = 0;
};

// x <- rows first_row - width + 1 ... first_row + rows - 1
HWY_INLINE void load_convolution(const ConvolutionCall& call, const ConvolutionBlock& block, int64_t rows,
                                 const ConvolutionScratch& s) {
  const int64_t halo = call.width - 1, channels = block.channels, channel = block.first_channel;
  for (int64_t i = -halo; i < rows; ++i) {
    const int64_t t = block.first_row + i;
    float* const to = s.x + (i + halo) * s.stride;
    if (t >= 0) {
      load_row(call.x.row(block.sequence.batch, block.sequence.first + t, 0) + channel, channels, 1.0f, to);
    } else if (call.before.data != nullptr) {
      load_row(call.before.row(block.sequence.batch, halo + t, 0) + channel, channels, 1.0f, to);
    } else {
      std::memset(to, 0, s.stride * sizeof(float));
    }
  }
  for (int64_t j = 0; j < call.width; ++j) {
    load_row(call.taps + j * call.x.dim + channel, channels, 1.0f, s.taps + j * s.stride);
  }
  if (call.bias != nullptr) {
    load_row(call.bias + channel, channels, 1.0f, s.bias);
  } else {
    std::memset(s.bias, 0, s.stride * sizeof(float));
  }
}

// bias + sum_j taps_j x_{row + j} for the channels c ...
HWY_INLINE Vector convolved(const ConvolutionScratch& s, int64_t width, int64_t row, int64_t c) {
  const Tag d;
  Vector sum = hn::LoadU(d, s.bias + c);
  for (int64_t j = 0; j < width; ++j) {
    sum = hn::MulAdd(hn::LoadU(d, s.taps + j * s.stride + c), hn::LoadU(d, s.x + (row + j) * s.stride + c), sum);
  }
  return sum;
}

// 1 / (1 + e^-x)
HWY_INLINE Vector sigmoid(Vector x) {
  const Tag d;
  const Vector exponent = hn::Min(hn::Mul(x, hn::Set(d, -1.44269504f)), hn::Set(d, 126.0f));
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), exp2(exponent)));
}

HWY_NOINLINE void convolution_forward(const ConvolutionCall& call, const ConvolutionBlock& block, float* memory) {
  const Tag d;
  const ConvolutionScratch s(call, memory);
  load_convolution(call, block, block.rows, s);
  for (int64_t i = 0; i < block.rows; ++i) {
    for (int64_t c = 0; c < block.channels; c += kLanes) {
      const Vector y = convolved(s, call.width, i, c);
      hn::StoreU(call.silu ? hn::Mul(y, sigmoid(y)) : y, d, s.y + c);
    }
    store_row(s.y, block.channels, 1.0f,
              call.y.row(block.sequence.batch, block.sequence.first + block.first_row + i, 0) + block.first_channel,
              call.y.past_caches);
  }
  hwy::FlushStream();
}

// s.y <- gradients by bias + sum of taps, for `rows` rows
HWY_INLINE void load_convolution_gradients(const ConvolutionCall& call, const ConvolutionBlock& block, int64_t rows,
                                           const ConvolutionScratch& s) {
  const Tag d;
  for (int64_t i = 0; i < rows; ++i) {
    float* const to = s.y + i * s.stride;
    load_row(call.d_y.row(block.sequence.batch, block.sequence.first + block.first_row + i, 0) + block.first_channel,
             block.channels, 1.0f, to);
    if (!call.silu) continue;
    for (int64_t c = 0; c < block.channels; c += kLanes) {
      const Vector y = convolved(s, call.width, i, c), gate = sigmoid(y);
      const Vector slope = hn::MulAdd(hn::Mul(y, gate), hn::Sub(hn::Set(d, 1.0f), gate), gate);
      hn::StoreU(hn::Mul(slope, hn::LoadU(d, to + c)), d, to + c);
    }
  }
}

// to <- sum_j taps_j d_{row + width - 1 - j}, for the rows that s.y has
HWY_INLINE void input_gradients(const ConvolutionCall& call, const ConvolutionBlock& block, int64_t row, int64_t rows,
                                const ConvolutionScratch& s, float* to, bool past_caches) {
  const Tag d;
  float* const sums = s.bias;  // no longer needed
  for (int64_t c = 0; c < block.channels; c += kLanes) {
    Vector sum = hn::Zero(d);
    for (int64_t j = 0; j < call.width; ++j) {
      const int64_t from = row + call.width - 1 - j;
      if (from < 0 || from >= rows) continue;
      sum = hn::MulAdd(hn::LoadU(d, s.taps + j * s.stride + c), hn::LoadU(d, s.y + from * s.stride + c), sum);
    }
    hn::StoreU(sum, d, sums + c);
  }
  store_row(sums, block.channels, 1.0f, to, past_caches);
}

HWY_NOINLINE void convolution_backward(const ConvolutionCall& call, const ConvolutionBlock& block, float* memory) {
  const Tag d;
  const ConvolutionScratch s(call, memory);
  const int64_t halo = call.width - 1, left = block.sequence.length - block.first_row;
  const int64_t rows = block.rows + halo < left ? block.rows + halo : left;  // rows whose gradients are read
  load_convolution(call, block, rows, s);
  load_convolution_gradients(call, block, rows, s);
  const int64_t batch = block.sequence.batch;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t t = block.sequence.first + block.first_row + i;
    input_gradients(call, block, i, rows, s, call.d_x.row(batch, t, 0) + block.first_channel, call.d_x.past_caches);
  }
  if (block.first_row == 0 && call.d_before.data != nullptr) {
    for (int64_t i = -halo; i < 0; ++i) {
      input_gradients(call, block, i, rows, s, call.d_before.row(batch, halo + i, 0) + block.first_channel, false);
    }
  }
  for (int64_t c = 0; c < block.channels; c += kLanes) {
    for (int64_t j = 0; j <= call.width; ++j) {  // the last is the bias
      Vector even = hn::Zero(d), odd = hn::Zero(d);
      for (int64_t i = 0; i < block.rows; ++i) {
        const Vector gradient = hn::LoadU(d, s.y + i * s.stride + c);
        const Vector x = j < call.width ? hn::LoadU(d, s.x + (i + j) * s.stride + c) : hn::Set(d, 1.0f);
        Vector& sum = i % 2 == 0 ? even : odd;
        sum = hn::MulAdd(gradient, x, sum);
      }
      hn::StoreU(hn::Add(even, odd), d, block.sums + j * s.stride + c);
    }
  }
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
