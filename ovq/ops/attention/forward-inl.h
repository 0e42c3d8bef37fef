// Forward of a block of rows: one pass over tiles of keys computes both the running softmax of the queries and the
// search for the nearest centroid.
//
//   per tile and panel    s <- beta log2(e) q . k + log2(count)      masked to what each row may see
//                         m' <- max(m, max s),  p <- 2^(s - m')
//                         l <- l 2^(m - m') + sum p,  out <- out 2^(m - m') + p . v
//   at the end            o <- out / l,  lse <- (m + log2 l) ln 2
//
// Reads c (dk + dv) floats per tile of c keys for up to 128 rows; writes only the panels' own state.
#if defined(OVQ_OPS_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_FORWARD_INL_H_
#undef OVQ_OPS_ATTENTION_FORWARD_INL_H_
#else
#define OVQ_OPS_ATTENTION_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "ovq/core/exp2-inl.h"
#include "ovq/core/log2-inl.h"
#include "ovq/core/matmul-inl.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/attention/panel-inl.h"
#include "ovq/ops/attention/search-inl.h"
#include "ovq/ops/attention/stored_rows-inl.h"
#include "ovq/ops/attention/tile_range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;
// The initial running maximum: below every score, but finite to avoid inf - inf.
inline constexpr float kLowest = std::numeric_limits<float>::lowest();

// Whether the values of the keys [begin, end) are all finite.
HWY_INLINE bool all_finite(const float* values, int64_t stride, int64_t begin, int64_t end, int64_t dim) {
  const PanelTag d;
  PanelVector sum = hn::Zero(d);
  float tail = 0.0f;
  const int64_t whole = dim / kLanes * kLanes;
  for (int64_t key = begin; key < end; ++key) {
    const float* row = values + key * stride;
    for (int64_t i = 0; i < whole; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, row + i), hn::Zero(d), sum);
    for (int64_t i = whole; i < dim; ++i) tail += row[i] * 0.0f;
  }
  return tail == 0.0f && hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)));
}

// acc <- acc + sum over a range's keys of weights[key][lane] rows[key][:], where each vector uses the keys that it
// sees.
template <class S, int R>
HWY_INLINE void multiply_add_range(const float* HWY_RESTRICT weights, ptrdiff_t weight_stride,
                                   const float* HWY_RESTRICT rows, ptrdiff_t stride, const TileRange& range,
                                   Tile<R>& acc) {
  const int64_t begin = range.begin, end = range.end;
  if constexpr (S::kEnd < kVectors || !kHalves) {
    multiply_add<S>(weights + begin * weight_stride, rows + begin * stride, 1, stride, end - begin, acc, weight_stride);
  } else {
    const int64_t both = range.shared_begin, upper = range.shared_end;
    if (begin < both) {
      multiply_add<Lower>(weights + begin * weight_stride, rows + begin * stride, 1, stride, both - begin, acc,
                          weight_stride);
    }
    multiply_add<Whole>(weights + both * weight_stride, rows + both * stride, 1, stride, upper - both, acc,
                        weight_stride);
    if (upper < end) {
      multiply_add<Upper>(weights + upper * weight_stride, rows + upper * stride, 1, stride, end - upper, acc,
                          weight_stride);
    }
  }
}

struct ForwardPanel {
  float* q;      // [key_dim][kPanel]
  float* out;    // [value_dim][kPanel], before the division by sum
  float* scale;  // [kPanel] beta log2(e)
  float* max;    // [kPanel]
  float* sum;    // [kPanel]
  int64_t first_row, rows;

  static int64_t floats(const Reading& reading) { return (reading.key_dim + reading.value_dim + 3) * kPanel; }
};

// The logarithms of a run of counts of 1.
inline constexpr float kNoBias[kRun] = {};

// scores[key][lane] of the keys [begin, end) for the slice's vectors from `vector` on, and their maximum over these
// keys.
template <class S>
HWY_NOINLINE void score_keys_of_tile(const ForwardPanel& panel, int vector, const KeyRun& keys, int64_t tile,
                                     int64_t begin, int64_t end, int64_t dim, float* HWY_RESTRICT scores,
                                     PanelVector* max, Ahead& ahead) {
  const PanelTag d;
  const float* first = keys.keys + (tile + begin) * keys.key_stride;
  const float* log_counts = keys.log_counts == nullptr ? nullptr : keys.log_counts + tile + begin;
  const float* q = panel.q + vector * kLanes;
  const float* scales = panel.scale + vector * kLanes;
  const int64_t stride = keys.key_stride;
  float* to = scores + begin * kPanel + vector * kLanes;
  for_row_runs(end - begin, [=, &ahead](auto run, int64_t key) HWY_ATTR {
    constexpr int R = run;
    ahead.fetch();
    // Copies: variables in the closure would be reloaded after each store, which might alias them.
    const float* const biases = log_counts == nullptr ? kNoBias : log_counts + key;
    const float* const scale_of = scales;
    PanelVector* const max_of = max + vector;
    float* const score = to + key * kPanel;
    Tile<R> acc;
    set_zero<S>(acc);
    multiply_add<S>(q, first + key * stride, stride, 1, dim, acc);
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) {
      const PanelVector scale = hn::Load(d, scale_of + x * kLanes);
      PanelVector run_max = max_of[x];  // in a register: through memory, the next run would have to wait for it
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const PanelVector s = hn::MulAdd(acc[r][x], scale, hn::Set(d, biases[r]));
        hn::Store(s, d, score + r * kPanel + x * kLanes);
        run_max = hn::Max(run_max, s);
      }
      max_of[x] = run_max;
    }
  });
}

// Sets scores to -inf where a row of the vector may not see the key; returns the maximum of the others.
HWY_NOINLINE PanelVector mask_vector(const TileRange& range, int x, float* HWY_RESTRICT scores) {
  const PanelTag d;
  const PanelVector hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  const VectorRange& vector = range.vectors[x];
  PanelVector max = hn::Set(d, kLowest);
  const auto mask = [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t key = begin; key < end; ++key) {
      float* at = scores + key * kPanel + x * kLanes;
      const PanelVector s = hn::IfThenElse(visible(range, key, x), hn::Load(d, at), hidden);
      hn::Store(s, d, at);
      max = hn::Max(max, s);
    }
  };
  mask(vector.begin, vector.full_begin);
  for (int64_t key = vector.full_begin; key < vector.full_end; ++key) {
    max = hn::Max(max, hn::Load(d, scores + key * kPanel + x * kLanes));
  }
  mask(vector.full_end, vector.end);
  return max;
}

// scores <- p = 2^(s - m'); updates the maximum and the sum of the vector's rows; returns 2^(m - m')
HWY_NOINLINE PanelVector softmax_vector(const ForwardPanel& panel, int x, const VectorRange& range,
                                        PanelVector tile_max, float* HWY_RESTRICT scores) {
  const PanelTag d;
  const PanelVector old = hn::Load(d, panel.max + x * kLanes);
  const PanelVector max = hn::Max(old, tile_max);
  const PanelVector rescale = exp2(d, hn::Sub(old, max));
  PanelVector sum = hn::Zero(d);
  hn::Store(max, d, panel.max + x * kLanes);
  for (int64_t key = range.begin; key < range.end; ++key) {
    float* at = scores + key * kPanel + x * kLanes;
    const PanelVector p = exp2(d, hn::Sub(hn::Load(d, at), max));
    hn::Store(p, d, at);
    sum = hn::Add(sum, p);
  }
  float* at = panel.sum + x * kLanes;
  hn::Store(hn::MulAdd(hn::Load(d, at), rescale, sum), d, at);
  return rescale;
}

// out <- out rescale + p . v for the slice's vectors from `vector` on
template <class S>
HWY_NOINLINE void accumulate_values(const ForwardPanel& panel, int vector, const KeyRun& keys, int64_t tile,
                                    const TileRange& range, int64_t dim, const float* scores,
                                    const PanelVector* rescale) {
  const PanelTag d;
  const float* values = keys.values + tile * keys.value_stride;
  const int64_t stride = keys.value_stride;
  const float* p = scores + vector * kLanes;
  float* out = panel.out + vector * kLanes;
  for_row_runs(dim, [=, &range](auto run, int64_t column) HWY_ATTR {
    constexpr int R = run;
    Tile<R> acc;
    set_zero<S>(acc);
    multiply_add_range<S>(p, kPanel, values + column, stride, range, acc);
    float* const sums = out + column * kPanel;
    const PanelVector* const factors = rescale + vector;
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) {
      const PanelVector factor = factors[x];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        float* at = sums + r * kPanel + x * kLanes;
        hn::Store(hn::MulAdd(hn::Load(d, at), factor, acc[r][x]), d, at);
      }
    }
  });
}

// The same for one vector whose rows may see different keys: p is zero for hidden keys, but their values may be NaN, so
// they must be skipped.
HWY_NOINLINE void accumulate_visible_values(const ForwardPanel& panel, int x, const KeyRun& keys, int64_t tile,
                                            const TileRange& range, int64_t dim, const float* scores,
                                            PanelVector rescale) {
  const PanelTag d;
  for (int64_t column = 0; column < dim; ++column) {
    PanelVector acc = hn::Zero(d);
    for (int64_t key = range.vectors[x].begin; key < range.vectors[x].end; ++key) {
      const PanelVector value = hn::Set(d, keys.values[(tile + key) * keys.value_stride + column]);
      const PanelVector p = hn::Load(d, scores + key * kPanel + x * kLanes);
      acc = hn::IfThenElse(visible(range, key, x), hn::MulAdd(value, p, acc), acc);
    }
    float* at = panel.out + column * kPanel + x * kLanes;
    hn::Store(hn::MulAdd(hn::Load(d, at), rescale, acc), d, at);
  }
}

// Whether hidden keys, whose p is 0, are harmless because their values are finite.
HWY_INLINE bool hidden_values_are_finite(const KeyRun& keys, int64_t tile, const TileRange& range, int64_t dim) {
  const float* values = keys.values + tile * keys.value_stride;
  return !range.masked() || (all_finite(values, keys.value_stride, range.begin, range.full_begin, dim) &&
                             all_finite(values, keys.value_stride, range.full_end, range.end, dim));
}

HWY_NOINLINE void read_tile(const Reading& reading, const ForwardPanel& panel, const KeyRun& keys, int64_t tile,
                            const TileRange& range, float* scores, Ahead& ahead) {
  const PanelTag d;
  PanelVector max[kVectors], rescale[kVectors];
  for (int x = 0; x < kVectors; ++x) max[x] = hn::Set(d, kLowest);
  for_range_parts(range, [&](auto slice, int vector, int64_t begin, int64_t end) HWY_ATTR {
    score_keys_of_tile<decltype(slice)>(panel, vector, keys, tile, begin, end, reading.key_dim, scores, max, ahead);
  });
  for (int x = 0; x < kVectors; ++x) {
    if (range.vectors[x].empty()) continue;
    if (range.vectors[x].masked()) max[x] = mask_vector(range, x, scores);
    rescale[x] = softmax_vector(panel, x, range.vectors[x], max[x], scores);
  }
  if (hidden_values_are_finite(keys, tile, range, reading.value_dim)) {
    for_seeing_vectors(range, [&](auto slice, int vector) HWY_ATTR {
      accumulate_values<decltype(slice)>(panel, vector, keys, tile, range, reading.value_dim, scores, rescale);
    });
    return;
  }
  for (int x = 0; x < kVectors; ++x) {
    if (range.vectors[x].empty()) continue;
    accumulate_visible_values(panel, x, keys, tile, range, reading.value_dim, scores, rescale[x]);
  }
}

// lse <- (max + log2(sum)) ln 2 for the rows of a vector
HWY_INLINE void log_sum_exp(const float* max, const float* sum, float* lse) {
  const PanelTag d;
  constexpr float kSmallest = std::numeric_limits<float>::min(), kLargest = std::numeric_limits<float>::max();
  const PanelVector s = hn::Load(d, sum);
  hn::Store(hn::Mul(hn::Add(hn::Load(d, max), log2(d, s)), hn::Set(d, kLn2)), d, lse);
  if (hn::AllTrue(d, hn::And(hn::Ge(s, hn::Set(d, kSmallest)), hn::Le(s, hn::Set(d, kLargest))))) return;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (sum[lane] >= kSmallest && sum[lane] <= kLargest) continue;
    lse[lane] = (max[lane] + std::log2(sum[lane])) * kLn2;
  }
}

HWY_NOINLINE void finish_panel(const ForwardBlock& block, const ForwardPanel& panel) {
  const PanelTag d;
  const Reading& reading = *block.reading;
  for (int64_t x = 0; x * kLanes < panel.rows; ++x) {
    const PanelVector inverse = hn::Div(hn::Set(d, 1.0f), hn::Load(d, panel.sum + x * kLanes));
    for (int64_t i = 0; i < reading.value_dim; ++i) {
      float* at = panel.out + i * kPanel + x * kLanes;
      hn::Store(hn::Mul(hn::Load(d, at), inverse), d, at);
    }
  }
  float* rows[kPanel] = {};
  for (int64_t lane = 0; lane < panel.rows; ++lane) rows[lane] = block.o.at(panel.first_row + lane, reading.group);
  if (block.lse.data != nullptr) {
    alignas(64) float lse[kPanel];
    for (int64_t x = 0; x < panel.rows; x += kLanes) log_sum_exp(panel.max + x, panel.sum + x, lse + x);
    for (int64_t lane = 0; lane < panel.rows; ++lane) {
      *block.lse.at(panel.first_row + lane, reading.group) = lse[lane];
    }
  }
  unpack_panel(panel.out, reading.value_dim, rows, panel.rows);
}

// A short window: each panel reads all its visible keys as one tile.
template <class PanelAt>
HWY_INLINE void walk_window(const ForwardBlock& block, int64_t panels, const PanelAt& panel_at, float* scores) {
  const Reading& reading = *block.reading;
  for (int64_t p = 0; p < panels; ++p) {
    const ForwardPanel panel = panel_at(p);
    const int64_t first = reading.first(panel.first_row);
    const int64_t count = reading.last(panel.first_row + panel.rows - 1) + 1 - first;
    Ahead ahead;
    if (reading.dictionary.count == 0) ahead.add_share(block.upcoming, p, p + 1, panels);
    ahead.spread(count / kRun);
    read_tile(reading, panel, reading.window, first, window_range(reading, panel.first_row, panel.rows, first, count),
              scores, ahead);
  }
}

// The keys [tile, tile + count) of a run in float32: a part of the run itself or, if stored as bfloat16, a copy.
HWY_INLINE KeyRun wide_tile(const KeyRun& keys, int64_t tile, int64_t count, Workspace& workspace) {
  KeyRun wide = keys;
  wide.count = count;
  wide.log_counts = keys.log_counts == nullptr ? nullptr : keys.log_counts + tile;
  if (keys.narrow()) {
    float* const to = workspace.wide.ensure(kTile * (keys.key_stride + keys.value_stride));
    float* const values = to + kTile * keys.key_stride;
    widen(keys.narrow_keys + tile * keys.key_stride, count * keys.key_stride, to);
    widen(keys.narrow_values + tile * keys.value_stride, count * keys.value_stride, values);
    wide.keys = to;
    wide.values = values;
  } else {
    wide.keys = keys.keys + tile * keys.key_stride;
    wide.values = keys.values + tile * keys.value_stride;
  }
  return wide;
}

HWY_NOINLINE void forward_panels(const ForwardBlock& block, Workspace& workspace) {
  const Reading& reading = *block.reading;
  const int64_t dim = reading.key_dim;
  const int64_t panels = (block.rows + kPanel - 1) / kPanel;
  const int64_t search_panels = (block.search_count + kPanel - 1) / kPanel;
  const int64_t panel_floats = ForwardPanel::floats(reading);
  const int64_t search_floats = (dim + 2) * kPanel;
  float* memory = workspace.packed.ensure(panels * panel_floats + search_panels * search_floats + (kPanel + 1) * dim);
  float* search_memory = memory + panels * panel_floats;
  float* scratch = search_memory + search_panels * search_floats;
  const int64_t walked = reading.walked_span() + kPanel;  // maximum number of keys that a panel sees
  float* scores = workspace.scores.ensure(std::max(kTile, walked) * kPanel);

  const auto panel_at = [&](int64_t p) HWY_ATTR {
    float* at = memory + p * panel_floats;
    float* out = at + dim * kPanel;
    float* scale = out + reading.value_dim * kPanel;
    const int64_t first = block.first_row + p * kPanel;
    return ForwardPanel{at,
                        out,
                        scale,
                        scale + kPanel,
                        scale + 2 * kPanel,
                        first,
                        std::min(kPanel, block.first_row + block.rows - first)};
  };
  for (int64_t p = 0; p < panels; ++p) {
    const ForwardPanel panel = panel_at(p);
    const float* rows[kPanel];
    query_rows(reading, panel.first_row, panel.rows, scratch, rows);
    pack_panel(rows, used_lanes(panel.rows), dim, panel.q);
    std::memset(panel.out, 0, reading.value_dim * kPanel * sizeof(float));
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const int64_t row = panel.first_row + std::min(lane, panel.rows - 1);
      panel.scale[lane] = reading.beta_of(row) * kLog2E;
      panel.max[lane] = kLowest;
      panel.sum[lane] = 0.0f;
    }
  }
  const auto search_similarity = [&](int64_t p) HWY_ATTR { return search_memory + p * search_floats + dim * kPanel; };
  const auto search_centroid = [&](int64_t p)
                                   HWY_ATTR { return reinterpret_cast<int32_t*>(search_similarity(p) + kPanel); };
  std::memset(scratch, 0, dim * sizeof(float));
  for (int64_t p = 0; p < search_panels; ++p) {
    pack_rows(block.search + p * kPanel * block.search_stride, block.search_stride,
              std::min(kPanel, block.search_count - p * kPanel), dim, scratch, search_memory + p * search_floats);
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      search_similarity(p)[lane] = -std::numeric_limits<float>::infinity();
      search_centroid(p)[lane] = 0;
    }
  }

  const KeyRun& dictionary = reading.dictionary;
  const bool fetch = !dictionary.narrow() && beyond_cache(reading, dictionary.count, 1);
  for (int64_t tile = 0; tile < dictionary.count; tile += kTile) {
    const int64_t count = std::min(kTile, dictionary.count - tile);
    const KeyRun keys = wide_tile(dictionary, tile, count, workspace);
    Ahead ahead;
    if (fetch) ahead.add(reading, dictionary, tile + count, std::min(kTile, dictionary.count - tile - count));
    ahead.add_share(block.upcoming, tile, tile + count, dictionary.count);
    ahead.spread((panels + search_panels) * (count / kRun));
    for (int64_t p = 0; p < panels; ++p) {
      const ForwardPanel panel = panel_at(p);
      read_tile(reading, panel, keys, 0, TileRange::all(count, panel.rows), scores, ahead);
    }
    for (int64_t p = 0; p < search_panels; ++p) {
      for_used_vectors(block.search_count - p * kPanel, [&](auto slice) HWY_ATTR {
        search_tile<decltype(slice)>(search_memory + p * search_floats, keys, 0, count, dim, tile, search_similarity(p),
                                     search_centroid(p), ahead);
      });
    }
  }
  if (reading.walked_span() > 0) {
    walk_window(block, panels, panel_at, scores);
  } else if (panels > 0) {
    const int64_t window_end = reading.last(block.first_row + block.rows - 1) + 1;
    const int64_t first_tile = reading.first(block.first_row) / kTile * kTile;
    const bool window_far = beyond_cache(reading, window_end - first_tile, 1);
    for (int64_t tile = first_tile; tile < window_end; tile += kTile) {
      const KeyRun& keys = reading.window;
      const int64_t count = std::min(kTile, keys.count - tile);
      Ahead ahead;
      if (window_far) ahead.add(reading, keys, tile + count, std::min(kTile, window_end - tile - count));
      ahead.spread(panels * (count / kRun));
      for (int64_t p = 0; p < panels; ++p) {
        const ForwardPanel panel = panel_at(p);
        const TileRange range = window_range(reading, panel.first_row, panel.rows, tile, count);
        if (!range.empty()) read_tile(reading, panel, keys, tile, range, scores, ahead);
      }
    }
  }

  for (int64_t p = 0; p < panels; ++p) finish_panel(block, panel_at(p));
  for (int64_t i = 0; i < block.search_count; ++i) {
    block.best_similarity[i] = search_similarity(i / kPanel)[i % kPanel];
    block.best_centroid[i] = search_centroid(i / kPanel)[i % kPanel];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
