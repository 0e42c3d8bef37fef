#include "ovq/ops/norm/norm.h"

#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels {
namespace {

constexpr const char* kRmsNorm = "rms_norm";
constexpr const char* kL2Norm = "l2_norm";
constexpr int64_t kNormBlock = 32;  // rows a thread takes at a time, and over which a gradient of the weight is summed

int64_t rms_norm_rows(const RmsNormInputs& in) {
  const auto width = std::ssize(in.weight);
  check(width >= 1, kRmsNorm, "weight has no elements; must have at least 1");
  check(in.groups >= 1 && width % in.groups == 0, kRmsNorm, "groups is ", in.groups, "; must divide the width, ",
        width);
  return check_rows(kRmsNorm, "x", in.x, width);
}

// Rows of the kernels, which are the groups of these rows.
detail::NormRows rms_norm_block(const RmsNormInputs& in, int64_t begin, int64_t end) {
  const auto width = std::ssize(in.weight);
  return {.x = in.x.data() + begin * width,
          .weight = in.weight.data(),
          .rows = (end - begin) * in.groups,
          .width = width / in.groups,
          .groups = in.groups,
          .divisor = static_cast<float>(width / in.groups),
          .eps = in.eps};
}

}  // namespace

int64_t rms_norm_sums(int64_t rows) { return (rows + kNormBlock - 1) / kNormBlock; }

void rms_norm_forward(const RmsNormInputs& in, std::span<float> y, std::span<float> r) {
  const int64_t rows = rms_norm_rows(in);
  const auto width = std::ssize(in.weight);
  check_size(kRmsNorm, "y", y, rows * width);
  check_size(kRmsNorm, "r", r, rows * in.groups);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, kNormBlock, width, [&](int64_t begin, int64_t end) {
    kernels.norm(rms_norm_block(in, begin, end), y.data() + begin * width, r.data() + begin * in.groups);
  });
}

void rms_norm_backward(const RmsNormInputs& in, std::span<const float> d_y, std::span<const float> r,
                       const RmsNormGradients& gradients) {
  const int64_t rows = rms_norm_rows(in);
  const auto width = std::ssize(in.weight);
  check_size(kRmsNorm, "d_y", d_y, rows * width);
  check_size(kRmsNorm, "r", r, rows * in.groups);
  check_size(kRmsNorm, "d_x", gradients.d_x, rows * width);
  check_size(kRmsNorm, "d_weight", gradients.d_weight, rms_norm_sums(rows) * width);
  if (!gradients.add.empty()) check_size(kRmsNorm, "add", gradients.add, rows * width);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, kNormBlock, 2 * width, [&](int64_t begin, int64_t end) {
    kernels.norm_backward(rms_norm_block(in, begin, end),
                          {.d_y = d_y.data() + begin * width,
                           .r = r.data() + begin * in.groups,
                           .add = gradients.add.empty() ? nullptr : gradients.add.data() + begin * width,
                           .d_x = gradients.d_x.data() + begin * width,
                           .d_weight = gradients.d_weight.data() + begin / kNormBlock * width});
  });
}

void l2_norm_forward(std::span<const float> x, int64_t width, float eps, std::span<float> y, std::span<float> r) {
  const int64_t rows = check_rows(kL2Norm, "x", x, width);
  check_size(kL2Norm, "y", y, rows * width);
  check_size(kL2Norm, "r", r, rows);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, kNormBlock, width, [&](int64_t begin, int64_t end) {
    kernels.norm({.x = x.data() + begin * width, .rows = end - begin, .width = width, .eps = eps},
                 y.data() + begin * width, r.data() + begin);
  });
}

void l2_norm_backward(std::span<const float> d_y, std::span<const float> y, std::span<const float> r, int64_t width,
                      std::span<float> d_x) {
  const int64_t rows = check_rows(kL2Norm, "y", y, width);
  check_size(kL2Norm, "d_y", d_y, rows * width);
  check_size(kL2Norm, "r", r, rows);
  check_size(kL2Norm, "d_x", d_x, rows * width);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, kNormBlock, width, [&](int64_t begin, int64_t end) {
    kernels.unit_backward({.d_y = d_y.data() + begin * width,
                           .y = y.data() + begin * width,
                           .r = r.data() + begin,
                           .rows = end - begin,
                           .width = width},
                          d_x.data() + begin * width);
  });
}

}  // namespace ovq::kernels
