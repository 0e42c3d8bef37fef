// Turns the rows of a projection into queries, keys and values, and back. Goes through a sequence token by token with
// only a few rows in scratch, so that everything between two matrix products is a single pass over memory. Backward
// goes from the last token to the first and recomputes intermediate values.
#if defined(OVQ_OPS_PROJECTIONS_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_PROJECTIONS_KERNEL_INL_H_
#undef OVQ_OPS_PROJECTIONS_KERNEL_INL_H_
#else
#define OVQ_OPS_PROJECTIONS_KERNEL_INL_H_
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

inline constexpr int64_t kRowsPerSum = 64;  // gradients of the taps are summed in blocks, for less rounding

HWY_INLINE void copy_row(const float* HWY_RESTRICT from, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

HWY_INLINE void set_row(float value, int64_t n, float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

// Prefetches token t's row of `rows`, if there is one. The rows have other rows between them, so the hardware does not
// predict the next one.
inline constexpr int64_t kFetchAhead = 6;  // tokens
HWY_INLINE void fetch_row(const float* rows, int64_t stride, int64_t t, int64_t time, int64_t n) {
  if (t < 0 || t >= time) return;
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < n; i += kLine) hwy::Prefetch(rows + t * stride + i);
}

// to <- to + a b
HWY_INLINE void add_product(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t n,
                            float* HWY_RESTRICT to) {
  for (int64_t i = 0; i < n; ++i) to[i] += a[i] * b[i];
}

// The convolution's input at time t, which may be before the first token if there are rows of it.
HWY_INLINE const float* input_row(const HeadRows& in, int64_t t) {
  return t >= 0 ? in.y + t * in.y_stride : in.before + (in.taps_count - 1 + t) * in.before_stride;
}

// The first of the `taps_count` inputs of token t that there is, as their index.
HWY_INLINE int64_t first_input(const HeadRows& in, int64_t t) {
  const int64_t missing = in.taps_count - 1 - t;
  return missing > 0 && in.before == nullptr ? missing : 0;
}

// to <- sum_j taps[j] row[t - count + 1 + j]
HWY_INLINE void convolve_row(const HeadRows& in, int64_t t, float* HWY_RESTRICT to) {
  const int64_t n = in.channels, count = in.taps_count, first = t - count + 1;
  const float* HWY_RESTRICT const taps = in.taps;
  if (in.taps_bias != nullptr)
    copy_row(in.taps_bias, n, to);
  else
    set_row(0, n, to);
  const int64_t begin = first_input(in, t);
  if (count == 4 && begin == 0) {
    const float *HWY_RESTRICT const y = input_row(in, first), *HWY_RESTRICT const y1 = input_row(in, first + 1),
                                    *HWY_RESTRICT const y2 = input_row(in, first + 2),
                                    *HWY_RESTRICT const y3 = input_row(in, t);
    const float *HWY_RESTRICT const w1 = taps + in.taps_stride, *HWY_RESTRICT const w2 = w1 + in.taps_stride,
                                    *HWY_RESTRICT const w3 = w2 + in.taps_stride;
    for (int64_t i = 0; i < n; ++i) to[i] += taps[i] * y[i] + w1[i] * y1[i] + w2[i] * y2[i] + w3[i] * y3[i];
    return;
  }
  for (int64_t j = begin; j < count; ++j) add_product(taps + j * in.taps_stride, input_row(in, first + j), n, to);
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

// Token t's row before shift and rotation: z, with its intermediate results c (before silu), s (its sigmoid) and the
// inverse norm of each head. A row that nothing changes is not copied.
struct HeadRow {
  float *c, *s, *z, *inverse;
};

HWY_INLINE bool stays(const HeadRows& in) { return in.taps == nullptr && !in.silu && !in.unit; }

HWY_INLINE const float* head_row(const HeadRows& in, int64_t t, const HeadRow& row) {
  const int64_t n = in.channels;
  const float* const y = in.y + t * in.y_stride;
  if (stays(in)) return y;
  const float* before = y;
  if (in.taps != nullptr) {
    float* const convolved = in.silu ? row.c : row.z;
    convolve_row(in, t, convolved);
    before = convolved;
  }
  if (in.silu) {
    if (in.taps == nullptr) copy_row(y, n, row.c);
    silu_row(row.c, n, row.s, row.z);
    before = row.z;
  }
  if (!in.unit) return row.z;
  for (int64_t first = 0, head = 0; first < n; first += in.head_dim, ++head) {
    const float* const from = before + first;
    float* const z = row.z + first;
    const float inverse = 1.0f / __builtin_sqrtf(row_dot(from, from, in.head_dim) + in.eps);
    row.inverse[head] = inverse;
    for (int64_t i = 0; i < in.head_dim; ++i) z[i] = from[i] * inverse;
  }
  return row.z;
}

// to <- from, each head rotated by the angles of token t; direction -1 rotates back
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

inline void heads_entry(const HeadRows& in, float* scratch, float* out, int64_t out_stride, float* last) {
  const int64_t n = in.channels;
  float *const c = scratch, *const s = c + n, *const inverse = s + n, *const mixed = inverse + n;
  float* const z[2] = {mixed + n, mixed + 2 * n};
  const bool direct = in.shift == Shift::none && in.angles == nullptr && !stays(in);
  const float* before = in.row_before;
  for (int64_t t = 0; t < in.time; ++t) {
    float* const to = out + t * out_stride;
    fetch_row(in.y, in.y_stride, t + kFetchAhead, in.time, n);
    const float* const own = head_row(in, t, {c, s, direct ? to : z[t % 2], inverse});
    if (direct) continue;
    if (before == nullptr) before = own;
    const float* row = in.shift == Shift::previous ? before : own;
    if (in.shift == Shift::mean) {
      float* const mean = in.angles != nullptr ? mixed : to;
      for (int64_t i = 0; i < n; ++i) mean[i] = in.share * before[i] + (1 - in.share) * own[i];
      row = mean;
    }
    if (in.angles != nullptr)
      rotate_row(in, t, row, 1, to);
    else if (row != to)
      copy_row(row, n, to);
    before = own;
  }
  if (last != nullptr) copy_row(before, n, last);
}

// Whether the shift has nothing before token t but its own row.
HWY_INLINE bool starts(const HeadRows& in, int64_t t) { return t == 0 && in.row_before == nullptr; }

// d_z of token t from the gradients g of the outputs at t and, if it exists, at t + 1.
HWY_INLINE void shift_backward(const HeadRows& in, int64_t t, const float* HWY_RESTRICT g,
                               const float* HWY_RESTRICT next, float* HWY_RESTRICT d_z) {
  const int64_t n = in.channels;
  if (in.shift == Shift::none) return copy_row(g, n, d_z);
  const float share = in.shift == Shift::previous ? 1.0f : in.share;
  const float own = starts(in, t) ? 1.0f : 1.0f - share;
  if (next == nullptr) {
    for (int64_t i = 0; i < n; ++i) d_z[i] = own * g[i];
  } else {
    for (int64_t i = 0; i < n; ++i) d_z[i] = own * g[i] + share * next[i];
  }
}

// d_y[t] <- sum_j taps[j] d_c[t + count - 1 - j], of the tokens there are; t may be before the first one
HWY_INLINE void input_gradient(const HeadRows& in, int64_t t, const float* d_c, float* d_y) {
  const int64_t n = in.channels, count = in.taps_count;
  set_row(0, n, d_y);
  for (int64_t later = t < 0 ? -t : 0; later < count && t + later < in.time; ++later) {
    add_product(in.taps + (count - 1 - later) * in.taps_stride, d_c + (t + later) % count * n, n, d_y);
  }
}

// piece[j] <- piece[j] + d_c[t] y[t - count + 1 + j], d_y[t] <- sum_j taps[j] d_c[t + count - 1 - j], with d_c of token
// t at t % count.
HWY_INLINE void convolve_row_backward(const HeadRows& in, int64_t t, const float* d_c, float* piece, float* d_y) {
  const int64_t n = in.channels, count = in.taps_count, first = t - count + 1, begin = first_input(in, t);
  const float* HWY_RESTRICT const own = d_c + t % count * n;
  if (count == 4 && begin == 0 && t + 3 < in.time) {
    const float *HWY_RESTRICT const y = input_row(in, first), *HWY_RESTRICT const y1 = input_row(in, first + 1),
                                    *HWY_RESTRICT const y2 = input_row(in, first + 2),
                                    *HWY_RESTRICT const y3 = input_row(in, t);
    const float *HWY_RESTRICT const w0 = in.taps, *HWY_RESTRICT const w1 = w0 + in.taps_stride,
                                    *HWY_RESTRICT const w2 = w1 + in.taps_stride,
                                    *HWY_RESTRICT const w3 = w2 + in.taps_stride;
    const float *HWY_RESTRICT const d1 = d_c + (t + 1) % 4 * n, *HWY_RESTRICT const d2 = d_c + (t + 2) % 4 * n,
                                    *HWY_RESTRICT const d3 = d_c + (t + 3) % 4 * n;
    float *HWY_RESTRICT const p0 = piece, *HWY_RESTRICT const p1 = p0 + n, *HWY_RESTRICT const p2 = p1 + n,
                              *HWY_RESTRICT const p3 = p2 + n;
    for_vectors(n, [&](int64_t i, int64_t some) HWY_ATTR {
      const auto at = [&](const float* from) HWY_ATTR { return load_some(from + i, some); };
      const RowVector g = at(own);
      store_some(hn::MulAdd(g, at(y), at(p0)), some, p0 + i);
      store_some(hn::MulAdd(g, at(y1), at(p1)), some, p1 + i);
      store_some(hn::MulAdd(g, at(y2), at(p2)), some, p2 + i);
      store_some(hn::MulAdd(g, at(y3), at(p3)), some, p3 + i);
      const RowVector late = hn::MulAdd(at(w1), at(d2), hn::Mul(at(w0), at(d3)));
      store_some(hn::MulAdd(at(w3), g, hn::MulAdd(at(w2), at(d1), late)), some, d_y + i);
    });
    return;
  }
  for (int64_t j = begin; j < count; ++j) add_product(own, input_row(in, first + j), n, piece + j * n);
  input_gradient(in, t, d_c, d_y);
}

inline void heads_backward_entry(const HeadRows& in, float* scratch, HeadRowsBackward& out) {
  const int64_t n = in.channels, count = in.taps_count;
  float *const c = scratch, *const s = c + n, *const inverse = s + n, *const unit = inverse + n;
  float* const g[2] = {unit + n, unit + 2 * n};
  float* const d_c = unit + 3 * n;       // [count][n], token t at t % count
  float* const piece = d_c + count * n;  // [count + 1][n]: taps, then bias
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
  const float* next = nullptr;
  for (int64_t t = in.time - 1; t >= 0; --t) {
    fetch_row(in.y, in.y_stride, t - count - kFetchAhead, in.time, n);
    fetch_row(out.d_out, out.out_stride, t - kFetchAhead, in.time, n);
    const float* const z = head_row(in, t, {c, s, unit, inverse});
    const float* own = out.d_out + t * out.out_stride;
    if (in.angles != nullptr) {
      rotate_row(in, t, own, -1, g[t % 2]);
      own = g[t % 2];
    }
    if (in.shift == Shift::mean) {
      if (next != nullptr) d_share += row_dot(next, z, n);
      if (!starts(in, t)) d_share -= row_dot(own, z, n);
      if (t == 0 && in.row_before != nullptr) d_share += row_dot(own, in.row_before, n);
    }
    float* const d_y = out.d_y + t * in.y_stride;
    float* HWY_RESTRICT const d = in.taps != nullptr ? d_c + t % count * n : d_y;
    shift_backward(in, t, own, next, d);
    if (next == nullptr && out.d_last != nullptr) {
      for (int64_t i = 0; i < n; ++i) d[i] += out.d_last[i];
    }
    next = own;
    if (in.unit) {  // d <- (d - z (z . d)) / norm
      for (int64_t first = 0, head = 0; first < n; first += in.head_dim, ++head) {
        const float projection = row_dot(d + first, z + first, in.head_dim);
        for (int64_t i = first; i < first + in.head_dim; ++i) d[i] = inverse[head] * (d[i] - z[i] * projection);
      }
    }
    if (in.silu) {
      for (int64_t i = 0; i < n; ++i) d[i] *= s[i] * (1 + c[i] * (1 - s[i]));
    }
    if (in.taps == nullptr) continue;
    convolve_row_backward(in, t, d_c, piece, d_y);
    if (out.d_taps_bias != nullptr) {
      for (int64_t i = 0; i < n; ++i) piece[count * n + i] += d[i];
    }
    if (t % kRowsPerSum == 0) add_piece();
  }
  out.d_share = d_share;
  if (out.d_row_before != nullptr) {
    const float share = in.shift == Shift::previous ? 1.0f : in.share;
    for (int64_t i = 0; i < n; ++i) out.d_row_before[i] = share * next[i];
  }
  if (out.d_before != nullptr) {
    for (int64_t j = 0; j + 1 < count; ++j) {
      input_gradient(in, j + 1 - count, d_c, out.d_before + j * out.d_before_stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
