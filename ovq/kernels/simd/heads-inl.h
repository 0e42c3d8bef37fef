// Queries, keys and values of a projection's rows, and back. A sequence is gone through token by token with the few
// rows that a token needs in scratch: everything between two matrix products is one pass over memory. Backward goes
// from the last token to the first and computes what lies between again.
#if defined(OVQ_KERNELS_SIMD_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_KERNELS_SIMD_HEADS_INL_H_
#undef OVQ_KERNELS_SIMD_HEADS_INL_H_
#else
#define OVQ_KERNELS_SIMD_HEADS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "ovq/kernels/simd/row_kernels.h"
#include "ovq/kernels/simd/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

inline constexpr int64_t kRowsPerSum = 64;  // gradients of the taps are summed in pieces: less rounding

HWY_INLINE void copy_row(const float* HWY_RESTRICT from, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

HWY_INLINE void set_row(float value, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// to <- to + a b
HWY_INLINE void add_product(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t n,
                            float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) to[i] += a[i] * b[i];
}

// to <- sum_j taps[j] row[t - count + 1 + j], without what would lie before the first row
HWY_INLINE void convolve_row(const HeadRows& in, int64_t t, float* HWY_RESTRICT to) {
  const int64_t n = in.channels, count = in.taps_count, first = t - count + 1;
  const float* HWY_RESTRICT const y = in.y + first * in.y_stride;
  const float* HWY_RESTRICT const taps = in.taps;
  if (in.taps_bias != nullptr)
    copy_row(in.taps_bias, n, to);
  else
    set_row(0, n, to);
  if (count == 4 && first >= 0) {
    const float *HWY_RESTRICT const y1 = y + in.y_stride, *HWY_RESTRICT const y2 = y1 + in.y_stride,
                                    *HWY_RESTRICT const y3 = y2 + in.y_stride;
    const float *HWY_RESTRICT const w1 = taps + in.taps_stride, *HWY_RESTRICT const w2 = w1 + in.taps_stride,
                                    *HWY_RESTRICT const w3 = w2 + in.taps_stride;
    for (int64_t i = 0; i < n; ++i) to[i] += taps[i] * y[i] + w1[i] * y1[i] + w2[i] * y2[i] + w3[i] * y3[i];
    return;
  }
  for (int64_t j = first < 0 ? -first : 0; j < count; ++j) {
    add_product(taps + j * in.taps_stride, y + j * in.y_stride, n, to);
  }
}

// s <- sigmoid(c), z <- c s
HWY_INLINE void silu_row(const float* HWY_RESTRICT c, int64_t n, float* HWY_RESTRICT s, float* HWY_RESTRICT z) {
  const RowTag d;
  for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const RowVector x = load_some(c + i, count), y = sigmoid(d, x);
    store_some(y, count, s + i);
    store_some(hn::Mul(x, y), count, z + i);
  });
}

// What token t's row is before shift and rotation: z, and on the way c (before silu), s (its sigmoid) and the inverse
// norm of each head.
struct HeadRow {
  float *c, *s, *z, *inverse;
};

HWY_INLINE void head_row(const HeadRows& in, int64_t t, const HeadRow& row) {
  const int64_t n = in.channels;
  float* const before = in.silu ? row.c : row.z;
  if (in.taps != nullptr)
    convolve_row(in, t, before);
  else
    copy_row(in.y + t * in.y_stride, n, before);
  if (in.silu) silu_row(row.c, n, row.s, row.z);
  if (!in.unit) return;
  for (int64_t first = 0, head = 0; first < n; first += in.head_dim, ++head) {
    float* HWY_RESTRICT const z = row.z + first;
    const float inverse = 1.0f / __builtin_sqrtf(row_dot(z, z, in.head_dim) + in.eps);
    row.inverse[head] = inverse;
    for (int64_t i = 0; i < in.head_dim; ++i) z[i] *= inverse;
  }
}

// to <- from, each head turned by the angles of token t; direction -1 turns back
HWY_INLINE void rotate_row(const HeadRows& in, int64_t t, const float* HWY_RESTRICT from, float direction,
                           float* HWY_RESTRICT to) {
  const int64_t half = in.head_dim / 2;
  const float* HWY_RESTRICT const angles = in.angles + t * in.head_dim;
  for (int64_t first = 0; first < in.channels; first += in.head_dim) {
    const float *HWY_RESTRICT const a = from + first, *HWY_RESTRICT const b = a + half;
    float *HWY_RESTRICT const to_a = to + first, *HWY_RESTRICT const to_b = to_a + half;
    for (int64_t i = 0; i < half; ++i) {
      const float cosine = angles[i], sine = direction * angles[half + i];
      to_a[i] = a[i] * cosine - b[i] * sine;
      to_b[i] = a[i] * sine + b[i] * cosine;
    }
  }
}

inline void heads_entry(const HeadRows& in, float* scratch, float* out, int64_t out_stride) {
  const int64_t n = in.channels;
  float *const c = scratch, *const s = c + n, *const inverse = s + n, *const mixed = inverse + n;
  float* const z[2] = {mixed + n, mixed + 2 * n};
  for (int64_t t = 0; t < in.time; ++t) {
    float *const own = z[t % 2], *const before = t > 0 ? z[(t + 1) % 2] : own;
    head_row(in, t, {c, s, own, inverse});
    const float* row = in.shift == Shift::previous ? before : own;
    if (in.shift == Shift::mean) {
      for (int64_t i = 0; i < n; ++i) mixed[i] = in.share * before[i] + (1 - in.share) * own[i];
      row = mixed;
    }
    if (in.angles != nullptr)
      rotate_row(in, t, row, 1, out + t * out_stride);
    else
      copy_row(row, n, out + t * out_stride);
  }
}

// d_z of token t of the gradients g of what came out at t and, if any, at t + 1.
HWY_INLINE void shift_backward(const HeadRows& in, int64_t t, const float* HWY_RESTRICT g,
                               const float* HWY_RESTRICT next, float* HWY_RESTRICT d_z) {
  const int64_t n = in.channels;
  if (in.shift == Shift::none) return copy_row(g, n, d_z);
  const float share = in.shift == Shift::previous ? 1.0f : in.share;
  const float own = t == 0 ? 1.0f : 1.0f - share;
  if (next == nullptr) {
    for (int64_t i = 0; i < n; ++i) d_z[i] = own * g[i];
  } else {
    for (int64_t i = 0; i < n; ++i) d_z[i] = own * g[i] + share * next[i];
  }
}

inline void heads_backward_entry(const HeadRows& in, float* scratch, HeadRowsBackward& out) {
  const int64_t n = in.channels, count = in.taps_count;
  float *const c = scratch, *const s = c + n, *const inverse = s + n, *const z = inverse + n;
  float* const g[2] = {z + n, z + 2 * n};
  float* const d_c = z + 3 * n;                                     // [max(1, count)][n], token t at t % count
  float* const piece = d_c + (in.taps != nullptr ? count : 1) * n;  // [count + 1][n]: taps, then bias
  if (in.taps != nullptr) {
    set_row(0, (count + 1) * n, piece);
    for (int64_t j = 0; j < count; ++j) set_row(0, n, out.d_taps + j * out.d_taps_stride);
    if (out.d_taps_bias != nullptr) set_row(0, n, out.d_taps_bias);
  }
  const auto add_piece = [&]() HWY_ATTR {
    for (int64_t j = 0; j < count; ++j) {
      float* HWY_RESTRICT const to = out.d_taps + j * out.d_taps_stride;
      for (int64_t i = 0; i < n; ++i) to[i] += piece[j * n + i];
    }
    if (out.d_taps_bias != nullptr) {
      for (int64_t i = 0; i < n; ++i) out.d_taps_bias[i] += piece[count * n + i];
    }
    set_row(0, (count + 1) * n, piece);
  };
  double d_share = 0;
  for (int64_t t = in.time - 1; t >= 0; --t) {
    head_row(in, t, {c, s, z, inverse});
    float* const own = g[t % 2];
    const float* const next = t + 1 < in.time ? g[(t + 1) % 2] : nullptr;
    if (in.angles != nullptr)
      rotate_row(in, t, out.d_out + t * out.out_stride, -1, own);
    else
      copy_row(out.d_out + t * out.out_stride, n, own);
    if (in.shift == Shift::mean) {
      if (next != nullptr) d_share += row_dot(next, z, n);
      if (t > 0) d_share -= row_dot(own, z, n);
    }
    float* HWY_RESTRICT const d = in.taps != nullptr ? d_c + t % count * n : d_c;
    shift_backward(in, t, own, next, d);
    if (in.unit) {  // d <- (d - z (z . d)) / norm
      for (int64_t first = 0, head = 0; first < n; first += in.head_dim, ++head) {
        const float projection = row_dot(d + first, z + first, in.head_dim);
        for (int64_t i = first; i < first + in.head_dim; ++i) d[i] = inverse[head] * (d[i] - z[i] * projection);
      }
    }
    if (in.silu) {
      for (int64_t i = 0; i < n; ++i) d[i] *= s[i] * (1 + c[i] * (1 - s[i]));
    }
    float* HWY_RESTRICT const d_y = out.d_y + t * in.y_stride;
    if (in.taps == nullptr) {
      copy_row(d, n, d_y);
      continue;
    }
    for (int64_t j = t < count - 1 ? count - 1 - t : 0; j < count; ++j) {
      add_product(d, in.y + (t - count + 1 + j) * in.y_stride, n, piece + j * n);
    }
    if (out.d_taps_bias != nullptr) {
      for (int64_t i = 0; i < n; ++i) piece[count * n + i] += d[i];
    }
    if (t % kRowsPerSum == 0) add_piece();
    // d_y[t] <- sum_j taps[j] d_c[t + count - 1 - j]
    set_row(0, n, d_y);
    for (int64_t later = 0; later < count && t + later < in.time; ++later) {
      add_product(in.taps + (count - 1 - later) * in.taps_stride, d_c + (t + later) % count * n, n, d_y);
    }
  }
  out.d_share = d_share;
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
