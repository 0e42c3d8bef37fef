#include "ovq/kernels/matvec.h"

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/kernels/parallel.h"
#include "ovq/kernels/simd/row_kernels.h"

namespace ovq::kernels {
namespace {

constexpr const char* kMatvec = "matvec";
// Of weights that a thread takes at a time, at most. Where a block begins, the memory's stream has to start anew: two
// threads of a machine that reads 62 GB/s read 42 in blocks of 128 kB, 52 in blocks of 512 kB, 50 to 55 in halves.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kWorthThreads = 1 << 16;  // multiply-adds

struct MatvecPlace {
  size_t weight = 0;
  int64_t first = 0, count = 0;  // of its outputs
};

int64_t outputs_of(std::span<const StoredMatrix> weights) {
  int64_t outputs = 0;
  for (const StoredMatrix& weight : weights) outputs += weight.outputs;
  return outputs;
}

// Outputs of a block. The result does not depend on it: each is a sum of its own.
int64_t block_outputs(const MatvecInputs& in, int threads) {
  const bool narrow = in.weights.front().narrow != nullptr;
  const int64_t bytes = in.depth * static_cast<int64_t>(narrow ? sizeof(Bfloat16) : sizeof(float));
  const int64_t fair = outputs_of(in.weights) / threads;
  return std::max<int64_t>(1, std::min(kBlockBytes / std::max<int64_t>(1, bytes), fair));
}

int64_t block_count(const StoredMatrix& weight, int64_t step) { return (weight.outputs + step - 1) / step; }

// The block with that index, of all weights one after the other.
MatvecPlace place_of(std::span<const StoredMatrix> weights, int64_t step, int64_t index) {
  size_t weight = 0;
  for (; index >= block_count(weights[weight], step); ++weight) index -= block_count(weights[weight], step);
  const int64_t first = index * step;
  return {weight, first, std::min(step, weights[weight].outputs - first)};
}

detail::MatvecBlock block_of(const MatvecInputs& in, size_t weight, int64_t first, int64_t count) {
  const StoredMatrix& w = in.weights[weight];
  return {.wide = w.wide == nullptr ? nullptr : w.wide + first * w.stride,
          .narrow = w.narrow == nullptr ? nullptr : w.narrow + first * w.stride,
          .w_stride = w.stride,
          .outputs = count,
          .depth = in.depth,
          .x = in.x,
          .x_stride = in.x_stride,
          .rows = in.rows};
}

void check_matvec(const MatvecInputs& in) {
  check(in.rows >= 0 && in.depth >= 0, kMatvec, "x is [", in.rows, ", ", in.depth, "]; must have no negative size");
  check(in.x != nullptr || in.rows * in.depth == 0, kMatvec, "x is missing");
  for (const StoredMatrix& weight : in.weights) {
    check((weight.wide == nullptr) != (weight.narrow == nullptr) || weight.outputs * in.depth == 0, kMatvec,
          "a weight must be wide or narrow, and one of both");
    check(weight.outputs >= 0 && weight.stride >= in.depth, kMatvec, "a weight has ", weight.outputs, " rows ",
          weight.stride, " apart; must be at least x's ", in.depth, " apart");
  }
  check(!in.gated || (in.weights.size() == 2 && in.weights[0].outputs == in.weights[1].outputs && in.add == nullptr),
        kMatvec, "gated is set; must be with two weights of one size, and without add");
}

// Where a weight's outputs begin among those of all.
int64_t first_column(const MatvecInputs& in, size_t weight) {
  int64_t column = 0;
  for (size_t i = 0; i < weight; ++i) column += in.weights[i].outputs;
  return column;
}

void stacked_matvec(const MatvecInputs& in, int threads, float* y, int64_t y_stride) {
  const int64_t step = block_outputs(in, threads);
  int64_t blocks = 0;
  for (const StoredMatrix& weight : in.weights) blocks += block_count(weight, step);
  const auto& kernels = detail::row_kernels();
  parallel_for(blocks, threads, [&](int64_t index, int) {
    const MatvecPlace place = place_of(in.weights, step, index);
    detail::MatvecBlock block = block_of(in, place.weight, place.first, place.count);
    const int64_t column = first_column(in, place.weight) + place.first;
    if (in.add != nullptr) {
      block.add = in.add + column;
      block.add_stride = in.add_stride;
    }
    kernels.matvec(block, y + column, y_stride);
  });
}

// A block has the same outputs of both weights.
constexpr int64_t kGatedOutputs = 256;

void gated_matvec(const MatvecInputs& in, int threads, float* y, int64_t y_stride) {
  const int64_t outputs = in.weights[0].outputs;
  const int64_t step = std::min(kGatedOutputs, block_outputs(in, threads));
  const auto& kernels = detail::row_kernels();
  parallel_for((outputs + step - 1) / step, threads, [&](int64_t index, int) {
    const int64_t first = index * step, count = std::min(step, outputs - first);
    for (int64_t row = 0; row < in.rows; row += kFewRowsAtMost) {
      const int64_t rows = std::min(kFewRowsAtMost, in.rows - row);
      float sums[kFewRowsAtMost * 2 * kGatedOutputs], gated[kFewRowsAtMost * kGatedOutputs];
      for (size_t weight = 0; weight < 2; ++weight) {
        detail::MatvecBlock block = block_of(in, weight, first, count);
        block.x += row * in.x_stride;
        block.rows = rows;
        kernels.matvec(block, sums + static_cast<int64_t>(weight) * count, 2 * count);
      }
      kernels.gate(sums, rows, count, gated);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(gated + r * count, count, y + (row + r) * y_stride + first);
    }
  });
}

}  // namespace

void matvec(const MatvecInputs& in, float* y, int64_t y_stride) {
  check_matvec(in);
  const int64_t outputs = outputs_of(in.weights);
  if (in.rows * outputs == 0) return;
  check(y != nullptr && y_stride >= (in.gated ? outputs / 2 : outputs), kMatvec, "y has rows ", y_stride,
        " apart; must be at least ", in.gated ? outputs / 2 : outputs);
  const int threads = in.rows * in.depth * outputs < kWorthThreads ? 1 : max_threads();
  if (in.gated) return gated_matvec(in, threads, y, y_stride);
  stacked_matvec(in, threads, y, y_stride);
}

}  // namespace ovq::kernels
