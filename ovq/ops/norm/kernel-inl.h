// Norms of rows (see norm.h). Simple loops are left to the compiler, which also compiles them for the target.
#if defined(OVQ_OPS_NORM_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_NORM_KERNEL_INL_H_
#undef OVQ_OPS_NORM_KERNEL_INL_H_
#else
#define OVQ_OPS_NORM_KERNEL_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

inline void norm_entry(const NormRows& in, float* y, float* r) {
  const int64_t width = in.width;
  for (int64_t row = 0; row < in.rows; ++row) {
    const float* HWY_RESTRICT const x = in.x + row * width;
    float* HWY_RESTRICT const to = y + row * width;
    const float inverse = 1.0f / __builtin_sqrtf(row_dot(x, x, width) / in.divisor + in.eps);
    r[row] = inverse;
    if (in.weight == nullptr) {
      for (int64_t i = 0; i < width; ++i) to[i] = x[i] * inverse;
    } else {
      const float* HWY_RESTRICT const weight = in.weight + row % in.groups * width;
      for (int64_t i = 0; i < width; ++i) to[i] = x[i] * inverse * weight[i];
    }
  }
}

// With g = d_y weight: d_x = r (g - x r^2 sum(g x) / divisor), d_weight = sum d_y x r.
inline void norm_backward_entry(const NormRows& in, const NormRowsBackward& out) {
  const int64_t width = in.width;
  for (int64_t i = 0; i < in.groups * width; ++i) out.d_weight[i] = 0;
  for (int64_t row = 0; row < in.rows; ++row) {
    const int64_t group = row % in.groups * width;
    const float* HWY_RESTRICT const weight = in.weight + group;
    float* HWY_RESTRICT const d_weight = out.d_weight + group;
    const float* HWY_RESTRICT const x = in.x + row * width;
    const float* HWY_RESTRICT const d_y = out.d_y + row * width;
    float* HWY_RESTRICT const d_x = out.d_x + row * width;
    const float inverse = out.r[row];
    for (int64_t i = 0; i < width; ++i) {
      d_x[i] = d_y[i] * weight[i];
      d_weight[i] += d_y[i] * (x[i] * inverse);
    }
    const float projection = inverse * inverse / in.divisor * row_dot(d_x, x, width);
    if (out.add == nullptr) {
      for (int64_t i = 0; i < width; ++i) d_x[i] = inverse * (d_x[i] - x[i] * projection);
    } else {
      const float* HWY_RESTRICT const add = out.add + row * width;
      for (int64_t i = 0; i < width; ++i) d_x[i] = add[i] + inverse * (d_x[i] - x[i] * projection);
    }
  }
}

// Of rows y = x r without a weight and a divisor of 1: d_x = r (d_y - y (y . d_y)).
inline void unit_backward_entry(const UnitRowsBackward& in, float* d_x) {
  const int64_t width = in.width;
  for (int64_t row = 0; row < in.rows; ++row) {
    const float* HWY_RESTRICT const y = in.y + row * width;
    const float* HWY_RESTRICT const d_y = in.d_y + row * width;
    float* HWY_RESTRICT const to = d_x + row * width;
    const float projection = row_dot(d_y, y, width), inverse = in.r[row];
    for (int64_t i = 0; i < width; ++i) to[i] = inverse * (d_y[i] - y[i] * projection);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
