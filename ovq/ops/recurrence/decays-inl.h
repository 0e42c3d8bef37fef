// The decays e^g within a chunk, and loading and storing chunks for all recurrences.
#if defined(OVQ_OPS_RECURRENCE_DECAYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_RECURRENCE_DECAYS_INL_H_
#undef OVQ_OPS_RECURRENCE_DECAYS_INL_H_
#else
#define OVQ_OPS_RECURRENCE_DECAYS_INL_H_
#endif

#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ovq/core/exp2-inl.h"
#include "ovq/ops/recurrence/dense_rows-inl.h"
#include "ovq/ops/recurrence/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

HWY_INLINE Vector exp2(Vector x) { return detail::HWY_NAMESPACE::exp2(Tag(), x); }

// The rows of one head in one sequence.
template <class T>
struct Series {
  T* data = nullptr;
  ptrdiff_t stride = 0;
  bool past_caches = false;
  T* operator[](int64_t t) const { return data + t * stride; }
};

template <class T>
HWY_INLINE Series<T> series(const Strided<T>& view, const Run& sequence, int64_t head) {
  if (view.data == nullptr) return {};
  return {view.row(sequence.batch, sequence.first, head), view.time_stride, view.past_caches};
}

// G_i is the sum of g up to token i. The sums are computed in double and stored as two floats each: only their
// differences matter, and after one strong decay a single float would have lost the weak ones.
struct Decays {
  alignas(64) float high[kChunk], low[kChunk];  // G_i log2(e) = high + low
  alignas(64) float from_start[kChunk];         // e^G_i
  alignas(64) float to_end[kChunk];             // e^(G_n - G_i)
  float total = 1;                              // e^G_n
};

// g(i) is the log decay of token i.
template <class Gate>
HWY_INLINE void fill_decays(int64_t n, const Gate& g, Decays& decays) {
  constexpr double kLog2E = 1.44269504088896340736;
  if (n <= 0) return;
  const Tag d;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(g(i));
    const double scaled = sum * kLog2E;
    decays.high[i] = static_cast<float>(scaled);
    decays.low[i] = static_cast<float>(scaled - static_cast<double>(decays.high[i]));
  }
  for (int64_t i = n; i < padded(n); ++i) decays.high[i] = decays.low[i] = 0.0f;
  const Vector last_high = hn::Set(d, decays.high[n - 1]), last_low = hn::Set(d, decays.low[n - 1]);
  for (int64_t i = 0; i < padded(n); i += kLanes) {
    const Vector high = hn::Load(d, decays.high + i), low = hn::Load(d, decays.low + i);
    hn::Store(exp2(hn::Add(high, low)), d, decays.from_start + i);
    hn::Store(exp2(hn::Add(hn::Sub(last_high, high), hn::Sub(last_low, low))), d, decays.to_end + i);
  }
  decays.total = decays.from_start[n - 1];
}

// Square matrices have rows of kChunk floats. Calls body(i, j, pair) for kLanes pairs of tokens (i, j ...) at a time,
// where pair = e^(G_i - G_j), zero for tokens after i. Covers all columns including the padding.
template <class Body>
HWY_INLINE void for_pairs(const Decays& decays, int64_t n, const Body& body) {
  const Tag d;
  for (int64_t i = 0; i < n; ++i) {
    const Vector high = hn::Set(d, decays.high[i]), low = hn::Set(d, decays.low[i]);
    int64_t j = 0;
    for (; j <= i; j += kLanes) {
      const Vector difference =
          hn::Add(hn::Sub(high, hn::Load(d, decays.high + j)), hn::Sub(low, hn::Load(d, decays.low + j)));
      const auto seen = hn::FirstN(d, static_cast<size_t>(i + 1 - j));
      body(i, j, hn::IfThenElseZero(seen, exp2(difference)));
    }
    for (; j < padded(n); j += kLanes) body(i, j, hn::Zero(d));
  }
}

// pairs [n, kChunk] <- left right for tokens up to the row's own; entries to the right of it are undefined. `right` has
// a token's numbers in a column, [depth, kChunk].
HWY_INLINE void multiply_pairs(int64_t n, const float* left, ptrdiff_t left_stride, const float* right, int64_t depth,
                               float* pairs) {
  multiply({.rows = n,
            .columns = padded(n),
            .out = pairs,
            .out_stride = kChunk,
            .first = rows_of(left, left_stride, right, kChunk, depth),
            .lower = true});
}

// The number of tokens of the chunk that begins with `first`.
HWY_INLINE int64_t chunk_length(const Run& sequence, int64_t first) {
  const int64_t left = sequence.length - first;
  return left < 0 ? 0 : left < kChunk ? left : kChunk;
}

// matrix <- rows of a tensor, padded
HWY_INLINE void load_rows(const Series<const float>& from, int64_t first, int64_t n, int64_t size, float factor,
                          float* matrix) {
  for (int64_t i = 0; i < n; ++i) load_row(from[first + i], size, factor, matrix + i * padded(size));
}

// rows of a tensor <- factor * matrix
HWY_INLINE void store_rows(const float* matrix, int64_t n, int64_t size, float factor, const Series<float>& to,
                           int64_t first) {
  for (int64_t i = 0; i < n; ++i) store_row(matrix + i * padded(size), size, factor, to[first + i], to.past_caches);
}

// Loads a state [rows, state_stride(columns)] from a view [sequences, rows, heads, columns]; zeros if the view is
// absent.
HWY_INLINE void load_state(const Strided<const float>& view, int64_t index, int64_t head, int64_t rows, int64_t columns,
                           float* state) {
  if (view.data == nullptr) {
    std::memset(state, 0, rows * state_stride(columns) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < rows; ++i)
    load_row(view.row(index, i, head), columns, 1.0f, state + i * state_stride(columns));
}

HWY_INLINE void store_state(const float* state, int64_t rows, int64_t columns, const Strided<float>& view,
                            int64_t index, int64_t head) {
  if (view.data == nullptr) return;
  for (int64_t i = 0; i < rows; ++i)
    store_row(state + i * state_stride(columns), columns, 1.0f, view.row(index, i, head));
}

// border <- state of `floats` floats, unless border is null.
HWY_INLINE void keep_state(const float* state, float* border, int64_t floats) {
  if (border != nullptr) std::memcpy(border, state, floats * sizeof(float));
}

// sum_ij a_ij b_ij of two states
HWY_INLINE double state_dot(const float* a, const float* b, int64_t rows, int64_t columns) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = i * state_stride(columns);
    sum += static_cast<double>(dot(a + at, b + at, padded(columns)));
  }
  return sum;
}

// Prefetches rows of the next chunk into L2 while the current one is computed, some of them with every call. All at
// once would exceed the cache misses that a core can have in flight. On a Xeon whose last-level cache holds the tensors
// (260 MB) it made no difference: 62.6 against 63.4 ms forward, 162 against 161 ms backward (gated delta rule, T
// 16384).
class Ahead {
 public:
  // Rows added from now on are fetched over `calls` calls.
  void restart(int64_t calls) {
    count_ = 0;
    calls_ = calls;
  }
  void add(const Series<const float>& rows, int64_t first, int64_t count, int64_t floats) {
    if (rows.data == nullptr || first < 0 || count <= 0 || count_ == kMost) return;
    parts_[count_++] = {rows[first], rows.stride, count, floats, (count + calls_ - 1) / calls_};
  }
  HWY_INLINE void fetch() {
    for (int i = 0; i < count_; ++i) {
      Part& part = parts_[i];
      for (int64_t row = 0; row < part.share && part.rows > 0; ++row) {
        for (int64_t j = 0; j < part.floats; j += kLine) __builtin_prefetch(part.data + j, 0, 2);
        part.data += part.stride;
        --part.rows;
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(float);
  static constexpr int kMost = 6;
  struct Part {
    const float* data;
    ptrdiff_t stride;
    int64_t rows, floats, share;
  };
  Part parts_[kMost];
  int count_ = 0;
  int64_t calls_ = 1;
};

HWY_NOINLINE void multiply(const Product& product, Ahead& ahead) { multiply_tiles(product, ahead); }

// Turns the gradients of the sums G into those of g, in place.
HWY_INLINE void sum_to_end(double* sums, int64_t n) {
  for (int64_t i = n - 2; i >= 0; --i) sums[i] += sums[i + 1];
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
