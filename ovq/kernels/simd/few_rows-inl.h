// Forward of a few rows (decode). The keys are read once, in order, and the vector lanes hold keys instead of rows;
// each row sees the same operations in the same order as in a panel, so the result has the same bits.
//
// Bound by memory: (dk + dv) elements per key. First all scores, then the softmax (scalars per tile), then the values.
#if defined(OVQ_KERNELS_SIMD_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_KERNELS_SIMD_FEW_ROWS_INL_H_
#undef OVQ_KERNELS_SIMD_FEW_ROWS_INL_H_
#else
#define OVQ_KERNELS_SIMD_FEW_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ovq/kernels/simd/exp2-inl.h"
#include "ovq/kernels/simd/forward-inl.h"
#include "ovq/kernels/simd/panel-inl.h"
#include "ovq/kernels/simd/read_kernels.h"
#include "ovq/kernels/simd/stored_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kFewRows = 5;  // queries and searched keys together
static_assert(kFewRows >= kNarrowWindowRows);
inline constexpr int kValueRows = 8;  // values summed together: sequential reading, accumulators in L1

struct FewRows {
  const float* rows;  // [queries + searched][key_dim]
  int queries, searched;
  float scale[kFewRows];  // beta log2(e) of each query
  float best_similarity[kFewRows];
  int32_t best_centroid[kFewRows];
  float* scores[kFewRows];  // of each query
};

// Scores of the keys [begin, end) of a run, which lie at `rows`; with `search` the nearest key of the searched rows
// too.
template <int R, class T>
HWY_NOINLINE void score_keys(FewRows& few, const KeyRun& keys, const T* rows, int64_t begin, int64_t end, int64_t dim,
                             bool search) {
  const PanelTag d;
  alignas(64) float dot[R][kKeyGroup];
  alignas(64) float bias[kKeyGroup] = {};
  for (int64_t key = begin; key < end; key += kKeyGroup) {
    const int64_t count = std::min(kKeyGroup, end - key);
    dot_key_group<R>(few.rows, rows + key * keys.key_stride, keys.key_stride, count, dim, dot);
    if (keys.log_counts != nullptr) std::memcpy(bias, keys.log_counts + key, count * sizeof(float));
    for (int r = 0; r < few.queries; ++r) {
      alignas(64) float s[kKeyGroup];
      for (int64_t x = 0; x < kKeyGroup; x += kLanes) {
        hn::Store(hn::MulAdd(hn::Load(d, dot[r] + x), hn::Set(d, few.scale[r]), hn::Load(d, bias + x)), d, s + x);
      }
      std::memcpy(few.scores[r] + key, s, count * sizeof(float));
    }
    for (int r = few.queries; search && r < R; ++r) {
      const int searched = r - few.queries;
      for (int64_t i = 0; i < count; ++i) {
        if (dot[r][i] > few.best_similarity[searched]) {
          few.best_similarity[searched] = dot[r][i];
          few.best_centroid[searched] = static_cast<int32_t>(key + i);
        }
      }
    }
  }
}

struct RowSoftmax {
  float max = kLowest, sum = 0.0f;
};

// scores <- p of the keys [begin, end), as softmax_tile does; returns 2^(m - m'). The sum is bound by the latency of
// its additions: the memory meanwhile fetches `values`, a line per key.
template <class T>
HWY_NOINLINE float softmax_row(RowSoftmax& state, float* HWY_RESTRICT scores, int64_t begin, int64_t end,
                               const T* values) {
  const PanelTag d;
  alignas(64) float lanes[kLanes];
  PanelVector maxima = hn::Set(d, state.max);
  int64_t whole = begin;
  for (; whole + kLanes <= end; whole += kLanes) maxima = hn::Max(maxima, hn::LoadU(d, scores + whole));
  hn::Store(maxima, d, lanes);
  float max = *std::max_element(lanes, lanes + kLanes);
  for (; whole < end; ++whole) max = std::max(max, scores[whole]);
  hn::Store(exp2(d, hn::Set(d, state.max - max)), d, lanes);
  const float rescale = lanes[0];
  float sum = 0.0f;
  for (int64_t key = begin; key < end; key += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, end - key);
    for (int line = 0; line < kLanes; ++line, values += kLineOf<T>) hwy::Prefetch(values);
    std::memset(lanes, 0, sizeof(lanes));
    std::memcpy(lanes, scores + key, count * sizeof(float));
    hn::Store(exp2(d, hn::Sub(hn::Load(d, lanes), hn::Set(d, max))), d, lanes);
    for (int64_t i = 0; i < count; ++i) sum += lanes[i];
    std::memcpy(scores + key, lanes, count * sizeof(float));
  }
  // MulAdd, so that it rounds as the panel's does.
  hn::Store(hn::MulAdd(hn::Set(d, state.sum), hn::Set(d, rescale), hn::Set(d, sum)), d, lanes);
  state = {max, lanes[0]};
  return rescale;
}

// out <- out rescale + p . v over the keys [begin, end)
template <class T>
HWY_NOINLINE void accumulate_row(const float* p, const T* values, int64_t stride, int64_t begin, int64_t end,
                                 int64_t dim, float rescale, float* HWY_RESTRICT acc, float* HWY_RESTRICT out) {
  const PanelTag d;
  const hn::CappedTag<float, 1> one;
  const int64_t whole = dim / kLanes * kLanes;
  std::memset(acc, 0, dim * sizeof(float));
  int64_t key = begin;
  for (; key + kValueRows <= end; key += kValueRows) {
    add_values<kValueRows>(p + key, values + key * stride, stride, dim, acc);
  }
  for (; key < end; ++key) add_values<1>(p + key, values + key * stride, stride, dim, acc);
  if constexpr (kNarrow<T>) in_order(acc, dim);
  for (int64_t i = 0; i < whole; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, out + i), hn::Set(d, rescale), hn::LoadU(d, acc + i)), d, out + i);
  }
  for (int64_t i = whole; i < dim; ++i) {
    hn::StoreU(hn::MulAdd(hn::LoadU(one, out + i), hn::Set(one, rescale), hn::LoadU(one, acc + i)), one, out + i);
  }
}

template <int R>
HWY_NOINLINE void forward_few_rows(const ForwardBlock& block, Workspace& workspace) {
  const Reading& reading = *block.reading;
  const int64_t dim = reading.key_dim;
  const int64_t dictionary = reading.dictionary.count;
  const int64_t first = block.rows == 0 ? 0 : reading.first(block.first_row);
  const int64_t last = block.rows == 0 ? -1 : reading.last(block.first_row + block.rows - 1);
  const int64_t score_floats = round_up(dictionary + last + 1, kKeyGroup);
  FewRows few;
  few.queries = static_cast<int>(block.rows);
  few.searched = static_cast<int>(block.search_count);
  float* rows = workspace.packed.ensure(R * dim + 2 * padded(reading.value_dim));
  float* acc = rows + R * dim;
  float* out = acc + padded(reading.value_dim);
  float* scores = workspace.scores.ensure(block.rows * score_floats);
  few.rows = rows;
  for (int r = 0; r < few.queries; ++r) {
    const int64_t row = block.first_row + r;
    const float* q = reading.q.at(row, reading.group);
    if (reading.rotary != nullptr) {
      rotate(q, reading.rotary + row / reading.group * dim, dim, 1.0f, rows + r * dim);
    } else {
      std::memcpy(rows + r * dim, q, dim * sizeof(float));
    }
    few.scale[r] = reading.beta_of(row) * kLog2E;
    few.scores[r] = scores + r * score_floats;
  }
  for (int r = 0; r < few.searched; ++r) {
    std::memcpy(rows + (few.queries + r) * dim, block.search + r * block.search_stride, dim * sizeof(float));
    few.best_similarity[r] = -std::numeric_limits<float>::infinity();
    few.best_centroid[r] = 0;
  }

  if (reading.dictionary.narrow()) {
    score_keys<R>(few, reading.dictionary, reading.dictionary.narrow_keys, 0, dictionary, dim, true);
  } else {
    score_keys<R>(few, reading.dictionary, reading.dictionary.keys, 0, dictionary, dim, true);
  }
  for (int r = 0; r < few.queries; ++r) few.scores[r] += dictionary;
  if (few.queries > 0 && reading.window.narrow()) {
    score_keys<R>(few, reading.window, reading.window.narrow_keys, first, last + 1, dim, false);
  } else if (few.queries > 0) {
    score_keys<R>(few, reading.window, reading.window.keys, first, last + 1, dim, false);
  }
  for (int r = 0; r < few.searched; ++r) {
    block.best_similarity[r] = few.best_similarity[r];
    block.best_centroid[r] = few.best_centroid[r];
  }

  for (int r = 0; r < few.queries; ++r) {
    const int64_t row = block.first_row + r;
    RowSoftmax softmax;
    std::memset(out, 0, reading.value_dim * sizeof(float));
    // In the steps of a panel: of kTile keys, or all at once.
    const auto read = [&](const auto* values, int64_t stride, float* p, int64_t begin, int64_t end,
                          int64_t step) HWY_ATTR {
      for (int64_t tile = begin / step * step; tile < end; tile += step) {
        const int64_t tile_begin = std::max(begin, tile), tile_end = std::min(end, tile + step);
        const float rescale =
            softmax_row(softmax, p, tile_begin, tile_end, values + (tile_begin + kValueRows) * stride);
        accumulate_row(p, values, stride, tile_begin, tile_end, reading.value_dim, rescale, acc, out);
      }
    };
    const KeyRun& centroids = reading.dictionary;
    float* const p = few.scores[r] - dictionary;
    if (centroids.narrow()) {
      read(centroids.narrow_values, centroids.value_stride, p, 0, dictionary, kTile);
    } else {
      read(centroids.values, centroids.value_stride, p, 0, dictionary, kTile);
    }
    const int64_t window_end = reading.last(row) + 1;
    const int64_t window_step = reading.walked_span() > 0 ? window_end : kTile;
    const KeyRun& window = reading.window;
    if (window.narrow()) {
      read(window.narrow_values, window.value_stride, few.scores[r], reading.first(row), window_end, window_step);
    } else {
      read(window.values, window.value_stride, few.scores[r], reading.first(row), window_end, window_step);
    }
    const float inverse = 1.0f / softmax.sum;
    float* o = block.o.at(row, reading.group);
    for (int64_t i = 0; i < reading.value_dim; ++i) o[i] = out[i] * inverse;
    if (block.lse.data != nullptr) {
      alignas(64) float max[kLanes], sum[kLanes], lse[kLanes];
      hn::Store(hn::Set(PanelTag(), softmax.max), PanelTag(), max);
      hn::Store(hn::Set(PanelTag(), softmax.sum), PanelTag(), sum);
      log_sum_exp(max, sum, lse);
      *block.lse.at(row, reading.group) = lse[0];
    }
  }
}

HWY_INLINE void forward_block(const ForwardBlock& block, Workspace& workspace) {
  switch (block.rows + block.search_count) {
    case 0:
      return;
    case 1:
      return forward_few_rows<1>(block, workspace);
    case 2:
      return forward_few_rows<2>(block, workspace);
    case 3:
      return forward_few_rows<3>(block, workspace);
    case 4:
      return forward_few_rows<4>(block, workspace);
    case 5:
      return forward_few_rows<5>(block, workspace);
    default:
      return forward_panels(block, workspace);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
