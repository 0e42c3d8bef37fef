// Forward of a few rows (decode). The keys are read once, in order, and the vector lanes hold keys instead of rows.
// Each row sees the same operations in the same order as in a panel, so the result is the same, bit for bit.
//
// Bound by memory: (dk + dv) elements per key. First all scores, then the softmax (scalars per tile), then the values.
#if defined(OVQ_OPS_ATTENTION_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_FEW_ROWS_INL_H_
#undef OVQ_OPS_ATTENTION_FEW_ROWS_INL_H_
#else
#define OVQ_OPS_ATTENTION_FEW_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ovq/core/exp2-inl.h"
#include "ovq/ops/attention/forward-inl.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/attention/panel-inl.h"
#include "ovq/ops/attention/stored_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct RowSoftmax {
  float max = kLowest, sum = 0.0f;
};

// scores <- p of the keys [begin, end), as in softmax_tile; returns 2^(m - m'). The sum is bound by the latency of
// additions; meanwhile values are prefetched, a line per key.
template <class T>
HWY_NOINLINE float softmax_row(RowSoftmax& state, float* HWY_RESTRICT scores, int64_t begin, int64_t end,
                               RowsAhead<T> values) {
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
  const auto shifted = [&](PanelVector score) HWY_ATTR { return exp2(d, hn::Sub(score, hn::Set(d, max))); };
  int64_t key = begin;
  for (; key + kLanes <= end; key += kLanes) {
    for (int line = 0; line < kLanes; ++line) values.fetch_line();
    hn::StoreU(shifted(hn::LoadU(d, scores + key)), d, scores + key);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sum += scores[key + i];
  }
  if (key < end) {
    std::memset(lanes, 0, sizeof(lanes));
    std::memcpy(lanes, scores + key, (end - key) * sizeof(float));
    hn::Store(shifted(hn::Load(d, lanes)), d, lanes);
    for (int64_t i = 0; i < end - key; ++i) sum += lanes[i];
    std::memcpy(scores + key, lanes, (end - key) * sizeof(float));
  }
  // MulAdd, to round as the panel does.
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
  const int64_t group = dim <= kSummedColumns ? end - begin : kValueRows;
  for (int64_t key = begin; key < end; key += group) {
    add_values(p + key, values + key * stride, stride, std::min(group, end - key), dim, acc);
  }
  if constexpr (kNarrow<T>) in_order(acc, dim);
  for (int64_t i = 0; i < whole; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, out + i), hn::Set(d, rescale), hn::LoadU(d, acc + i)), d, out + i);
  }
  for (int64_t i = whole; i < dim; ++i) {
    hn::StoreU(hn::MulAdd(hn::LoadU(one, out + i), hn::Set(one, rescale), hn::LoadU(one, acc + i)), one, out + i);
  }
}

// The queries of one head with the keys that search its dictionary, R rows in all, as they go through the head's keys.
template <int R>
class FewRows {
 public:
  static int64_t row_floats(const Reading& reading) {
    return R * (reading.key_dim + padded(reading.value_dim)) + padded(reading.value_dim);
  }
  static int64_t score_floats(const ForwardBlock& block) {
    const int64_t last = block.rows == 0 ? -1 : block.reading->last(block.first_row + block.rows - 1);
    return round_up(block.reading->dictionary.count + last + 1 + kKeyGroup,
                    kKeyGroup);  // scores are written in whole groups
  }

  // `rows` has row_floats() floats, `scores` score_floats() for each query.
  void begin(const ForwardBlock& block, float* rows, float* scores) {
    block_ = &block;
    const Reading& reading = *block.reading;
    const int64_t dim = reading.key_dim;
    queries_ = static_cast<int>(block.rows);
    searched_ = static_cast<int>(block.search_count);
    rows_ = rows;
    out_ = rows + R * dim;
    acc_ = out_ + R * padded(reading.value_dim);
    for (int r = 0; r < queries_; ++r) {
      const int64_t row = block.first_row + r;
      const float* q = reading.q.at(row, reading.group);
      if (reading.rotary != nullptr) {
        rotate(q, reading.rotary + row / reading.group * dim, dim, 1.0f, rows + r * dim);
      } else {
        std::memcpy(rows + r * dim, q, dim * sizeof(float));
      }
      scale_[r] = reading.beta_of(row) * kLog2E;
      scores_[r] = scores + r * score_floats(block);
      softmax_[r] = {};
      std::memset(out(r), 0, reading.value_dim * sizeof(float));
    }
    for (int r = 0; r < searched_; ++r) {
      std::memcpy(rows + (queries_ + r) * dim, block.search + r * block.search_stride, dim * sizeof(float));
      block.best_similarity[r] = -std::numeric_limits<float>::infinity();
      block.best_centroid[r] = 0;
    }
  }

  // Scores the whole dictionary.
  void score_dictionary() {
    const KeyRun& keys = block_->reading->dictionary;
    with_stored(keys, [&](const auto* stored, const auto*) HWY_ATTR { score(keys, stored, 0, keys.count, 0); });
  }
  void read_dictionary() {
    const KeyRun& keys = block_->reading->dictionary;
    with_stored(keys, [&](const auto*, const auto* stored) HWY_ATTR {
      for (int r = 0; r < queries_; ++r) {
        for (int64_t tile = 0; tile < keys.count; tile += kTile) {
          read(r, keys, stored, tile, std::min(tile + kTile, keys.count), 0);
        }
      }
    });
  }

  int64_t window_begin() const { return block_->reading->first(block_->first_row); }
  int64_t window_end() const { return block_->reading->last(block_->first_row + queries_ - 1) + 1; }
  // Scores those of the window's keys [begin, end) that some query sees; begin - window_begin() is a multiple of
  // kKeyGroup.
  void score_window(int64_t begin, int64_t end) {
    const KeyRun& keys = block_->reading->window;
    with_stored(keys, [&](const auto* stored, const auto*) HWY_ATTR {
      score(keys, stored, begin, std::min(end, window_end()), block_->reading->dictionary.count);
    });
  }
  // Reads those of the window's keys [begin, end) that a query sees, in one step of the running softmax, as panels do.
  void read_window(int64_t begin, int64_t end) {
    const Reading& reading = *block_->reading;
    with_stored(reading.window, [&](const auto*, const auto* stored) HWY_ATTR {
      for (int r = 0; r < queries_; ++r) {
        const int64_t row = block_->first_row + r, row_end = reading.last(row) + 1;
        read(r, reading.window, stored, std::max(begin, reading.first(row)), std::min(end, row_end),
             reading.dictionary.count);
      }
    });
  }

  void finish() const {
    const Reading& reading = *block_->reading;
    for (int r = 0; r < queries_; ++r) {
      const int64_t row = block_->first_row + r;
      const float inverse = 1.0f / softmax_[r].sum;
      float* o = block_->o.at(row, reading.group);
      for (int64_t i = 0; i < reading.value_dim; ++i) o[i] = out(r)[i] * inverse;
      if (block_->lse.data == nullptr) continue;
      alignas(64) float max[kLanes], sum[kLanes], lse[kLanes];
      hn::Store(hn::Set(PanelTag(), softmax_[r].max), PanelTag(), max);
      hn::Store(hn::Set(PanelTag(), softmax_[r].sum), PanelTag(), sum);
      log_sum_exp(max, sum, lse);
      *block_->lse.at(row, reading.group) = lse[0];
    }
  }

 private:
  float* out(int r) const { return out_ + r * padded(block_->reading->value_dim); }

  template <class F>
  static HWY_INLINE void with_stored(const KeyRun& keys, const F& f) {
    if (keys.narrow()) return f(keys.narrow_keys, keys.narrow_values);
    f(keys.keys, keys.values);
  }

  // Scores the keys [begin, end) of a run, storing them `offset` after the first. In the dictionary it also finds the
  // nearest key of the searched rows.
  template <class T>
  HWY_NOINLINE void score(const KeyRun& keys, const T* stored, int64_t begin, int64_t end, int64_t offset) {
    const PanelTag d;
    const int64_t dim = block_->reading->key_dim;
    const bool search = &keys == &block_->reading->dictionary;
    alignas(64) float dot[R][kKeyGroup];
    alignas(64) float few[kKeyGroup] = {};
    for (int64_t key = begin; key < end; key += kKeyGroup) {
      const int64_t count = std::min(kKeyGroup, end - key);
      const float* bias = few;
      if (keys.log_counts != nullptr) {
        hwy::Prefetch(keys.log_counts + key + kKeyGroup);  // the hardware does not prefetch such rare reads
        if (count < kKeyGroup) std::memcpy(few, keys.log_counts + key, count * sizeof(float));
        if (count == kKeyGroup) bias = keys.log_counts + key;
      }
      dot_key_group<R>(rows_, stored + key * keys.key_stride, keys.key_stride, count, dim, dot);
      for (int r = 0; r < queries_; ++r) {
        float* s = scores_[r] + offset + key;
        for (int64_t x = 0; x < kKeyGroup; x += kLanes) {
          hn::StoreU(hn::MulAdd(hn::Load(d, dot[r] + x), hn::Set(d, scale_[r]), hn::LoadU(d, bias + x)), d, s + x);
        }
      }
      for (int r = 0; search && r < searched_; ++r) find_nearest(r, dot[queries_ + r], key, count);
    }
  }

  // Compares a searched row with the keys [key, key + count); only few are nearer than all keys before them.
  HWY_INLINE void find_nearest(int r, const float (&similarity)[kKeyGroup], int64_t key, int64_t count) const {
    const PanelTag d;
    float& best = block_->best_similarity[r];
    for (int64_t first = 0; first < count; first += kLanes) {
      if (hn::AllFalse(d, hn::Gt(hn::Load(d, similarity + first), hn::Set(d, best)))) continue;
      for (int64_t i = first; i < std::min(first + kLanes, count); ++i) {
        if (!(similarity[i] > best)) continue;
        best = similarity[i];
        block_->best_centroid[r] = static_cast<int32_t>(key + i);
      }
    }
  }

  // One step of the running softmax of query r.
  template <class T>
  HWY_NOINLINE void read(int r, const KeyRun& keys, const T* values, int64_t begin, int64_t end, int64_t offset) {
    if (begin >= end) return;
    const int64_t stride = keys.value_stride, dim = block_->reading->value_dim;
    float* const p = scores_[r] + offset;
    const RowsAhead ahead(values + (begin + kValueRows) * stride, stride, dim);
    const float rescale = softmax_row(softmax_[r], p, begin, end, ahead);
    accumulate_row(p, values, stride, begin, end, dim, rescale, acc_, out(r));
  }

  const ForwardBlock* block_ = nullptr;
  int queries_ = 0, searched_ = 0;
  float *rows_ = nullptr, *out_ = nullptr, *acc_ = nullptr;
  float scale_[R];    // beta log2(e) of each query
  float* scores_[R];  // of the dictionary, then of the window
  RowSoftmax softmax_[R];
};

// Processes blocks of R rows each, of several heads that go through their windows together, a tile of keys at a time.
// If heads are interleaved in memory, a single head touches as many pages as all of them.
template <int R>
HWY_NOINLINE void forward_few_rows(std::span<const ForwardBlock> blocks, Workspace& workspace) {
  FewRows<R> heads[kFewHeads];
  const int64_t row_floats = FewRows<R>::row_floats(*blocks[0].reading);
  const int64_t score_floats = blocks[0].rows * FewRows<R>::score_floats(blocks[0]);
  float* rows = workspace.packed.ensure(blocks.size() * row_floats);
  float* scores = workspace.scores.ensure(blocks.size() * score_floats);
  const std::span<FewRows<R>> all(heads, blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    all[i].begin(blocks[i], rows + i * row_floats, scores + i * score_floats);
    all[i].score_dictionary();
  }
  if (blocks[0].rows == 0) return;
  const int64_t begin = all[0].window_begin(), end = all[0].window_end();
  for (int64_t key = begin; key < end; key += kTile) {
    for (FewRows<R>& head : all) head.score_window(key, key + kTile);
  }
  for (FewRows<R>& head : all) head.read_dictionary();
  const int64_t step = blocks[0].reading->walked_span() > 0 ? end : kTile;
  for (int64_t tile = begin / step * step; tile < end; tile += step) {
    for (FewRows<R>& head : all) head.read_window(tile, tile + step);
  }
  for (const FewRows<R>& head : all) head.finish();
}

HWY_INLINE void forward_few(std::span<const ForwardBlock> blocks, Workspace& workspace) {
  switch (blocks[0].rows + blocks[0].search_count) {
    case 0:
      return;
    case 1:
      return forward_few_rows<1>(blocks, workspace);
    case 2:
      return forward_few_rows<2>(blocks, workspace);
    case 3:
      return forward_few_rows<3>(blocks, workspace);
    case 4:
      return forward_few_rows<4>(blocks, workspace);
    default:
      static_assert(kFewRows == 5);
      return forward_few_rows<5>(blocks, workspace);
  }
}

HWY_INLINE void forward_block(const ForwardBlock& block, Workspace& workspace) {
  if (block.rows + block.search_count > kFewRows) return forward_panels(block, workspace);
  forward_few(std::span(&block, 1), workspace);
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
