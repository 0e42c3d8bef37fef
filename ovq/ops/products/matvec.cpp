#include "ovq/ops/products/matvec.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels {
namespace {

constexpr const char* kMatvec = "matvec";
// When a thread jumps to another address, the memory's stream starts anew: two threads of a machine that reads 62 GB/s
// read 42 in blocks of 128 kB, 52 in blocks of 512 kB, 50 to 55 in halves. So blocks are large at first and small at
// the end, where threads wait for the last of them.
constexpr int64_t kLeastBytes = 1 << 17;    // of weights in a block, unless some threads would get none
constexpr int64_t kWorthThreads = 1 << 16;  // multiply-adds from which threads pay off

struct MatvecPlace {
  size_t weight = 0;
  int64_t first = 0, count = 0;  // of its outputs
};

int64_t outputs_of(std::span<const StoredMatrix> weights) {
  int64_t outputs = 0;
  for (const StoredMatrix& weight : weights) outputs += weight.outputs;
  return outputs;
}

// The blocks that threads take one after the other, each of at most `most` outputs. The division does not affect the
// result: each output is a sum of its own.
std::vector<MatvecPlace> blocks_of(const MatvecInputs& in, std::span<const StoredMatrix> weights, int threads,
                                   int64_t most) {
  const bool narrow = in.weights.front().narrow != nullptr;
  const int64_t bytes = in.depth * static_cast<int64_t>(narrow ? sizeof(Bfloat16) : sizeof(float));
  int64_t left = outputs_of(weights);
  const int64_t least = std::max<int64_t>(1, std::min(kLeastBytes / std::max<int64_t>(1, bytes), left / (2 * threads)));
  std::vector<MatvecPlace> blocks;
  for (size_t weight = 0; weight < weights.size(); ++weight) {
    for (int64_t first = 0; first < weights[weight].outputs;) {
      const int64_t fair = threads == 1 ? left : left / (2 * threads);
      const int64_t count = std::min({std::max(least, fair), most, weights[weight].outputs - first});
      blocks.push_back({weight, first, count});
      first += count;
      left -= count;
    }
  }
  return blocks;
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

// The first column of a weight's outputs among all outputs.
int64_t first_column(const MatvecInputs& in, size_t weight) {
  int64_t column = 0;
  for (size_t i = 0; i < weight; ++i) column += in.weights[i].outputs;
  return column;
}

void stacked_matvec(const MatvecInputs& in, int threads, float* y, int64_t y_stride) {
  const std::vector<MatvecPlace> blocks = blocks_of(in, in.weights, threads, outputs_of(in.weights));
  const auto& kernels = detail::row_kernels();
  parallel_for(std::ssize(blocks), threads, [&](int64_t index, int) {
    const MatvecPlace& place = blocks[static_cast<size_t>(index)];
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
  const std::vector<MatvecPlace> blocks = blocks_of(in, in.weights.first(1), threads, kGatedOutputs);
  const auto& kernels = detail::row_kernels();
  parallel_for(std::ssize(blocks), threads, [&](int64_t index, int) {
    const int64_t first = blocks[static_cast<size_t>(index)].first, count = blocks[static_cast<size_t>(index)].count;
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
