// Forward of a block of rows: one pass over tiles of keys serves the running softmax of the queries and the search for
// the nearest centroid.
//
//   per tile and panel    s <- beta log2(e) q . k + log2(count)      masked to what each row may see
//                         m' <- max(m, max s),  p <- 2^(s - m')
//                         l <- l 2^(m - m') + sum p,  out <- out 2^(m - m') + p . v
//   at the end            o <- out / l,  lse <- (m + log2 l) ln 2
//
// Reads per tile of c keys: c (dk + dv) floats for up to 128 rows; nothing is written but the panels' own state.
#if defined(OVQ_KERNELS_SIMD_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_KERNELS_SIMD_FORWARD_INL_H_
#undef OVQ_KERNELS_SIMD_FORWARD_INL_H_
#else
#define OVQ_KERNELS_SIMD_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "ovq/kernels/simd/exp2-inl.h"
#include "ovq/kernels/simd/matmul-inl.h"
#include "ovq/kernels/simd/panel-inl.h"
#include "ovq/kernels/simd/read_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;
// Where the running maximum starts: below every score, and finite, so that nothing becomes inf - inf.
inline constexpr float kLowest = std::numeric_limits<float>::lowest();

// The part of a tile that a panel reads: keys [begin, end), of which [full_begin, full_end) are visible to all its
// rows.
struct TileRange {
  int64_t begin = 0, full_begin = 0, full_end = 0, end = 0;
  alignas(64) float first[kPanel];  // of each row, relative to the tile; only set where the range is not full
  alignas(64) float last[kPanel];

  bool empty() const { return begin >= end; }
  bool masked() const { return begin < full_begin || full_end < end; }
  static TileRange all(int64_t count) { return {0, 0, count, count, {}, {}}; }
};

// What rows first_row ... first_row + rows - 1 see of the window's keys [tile, tile + count).
HWY_NOINLINE TileRange window_range(const Reading& reading, int64_t first_row, int64_t rows, int64_t tile,
                                    int64_t count) {
  const int64_t last_row = first_row + rows - 1;
  TileRange range;
  range.begin = std::max<int64_t>(0, reading.first(first_row) - tile);
  range.end = std::min(count, reading.last(last_row) + 1 - tile);
  if (range.empty()) return range;
  range.full_begin = std::max(range.begin, reading.first(last_row) - tile);
  range.full_end = std::min(range.end, reading.last(first_row) + 1 - tile);
  if (range.full_begin >= range.full_end) range.full_begin = range.full_end = range.end;
  if (!range.masked()) return range;
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    const int64_t row = std::min(first_row + lane, last_row);
    range.first[lane] = static_cast<float>(std::clamp<int64_t>(reading.first(row) - tile, -1, count));
    range.last[lane] = static_cast<float>(std::clamp<int64_t>(reading.last(row) - tile, -1, count));
  }
  return range;
}

HWY_INLINE auto visible(const TileRange& range, int64_t key, int x) {
  const PanelTag d;
  const PanelVector index = hn::Set(d, static_cast<float>(key));
  return hn::And(hn::Ge(index, hn::Load(d, range.first + x * kLanes)),
                 hn::Le(index, hn::Load(d, range.last + x * kLanes)));
}

// Whether the values of the keys [begin, end) have neither inf nor NaN.
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

// multiply_add over keys of which a row takes only those it may see: p is zero for the others, but their value may be
// NaN.
template <int R>
HWY_INLINE void multiply_add_visible(const float* HWY_RESTRICT p, const float* HWY_RESTRICT values, int64_t stride,
                                     const TileRange& range, PanelVector (&acc)[R][kVectors]) {
  const PanelTag d;
  for (int64_t key = range.begin; key < range.end; ++key) {
    for (int x = 0; x < kVectors; ++x) {
      const auto mask = visible(range, key, x);
      const PanelVector a = hn::Load(d, p + key * kPanel + x * kLanes);
      for (int r = 0; r < R; ++r) {
        acc[r][x] = hn::IfThenElse(mask, hn::MulAdd(hn::Set(d, values[key * stride + r]), a, acc[r][x]), acc[r][x]);
      }
    }
  }
}

struct ForwardPanel {
  float* q;      // [key_dim][16]
  float* out;    // [value_dim][16], before the division by sum
  float* scale;  // [16] beta log2(e)
  float* max;    // [16]
  float* sum;    // [16]
  int64_t first_row, rows;

  static int64_t floats(const Reading& reading) { return (reading.key_dim + reading.value_dim + 3) * kPanel; }
};

// scores[key][lane] of the keys [begin, end) and their maximum over all of them
HWY_NOINLINE void score_tile(const ForwardPanel& panel, const KeyRun& keys, int64_t tile, int64_t begin, int64_t end,
                             int64_t dim, float* HWY_RESTRICT scores, PanelVector (&max)[kVectors], Ahead& ahead) {
  const PanelTag d;
  const float* first = keys.keys + (tile + begin) * keys.key_stride;
  const float* log_counts = keys.log_counts == nullptr ? nullptr : keys.log_counts + tile + begin;
  const float* q = panel.q;
  const float* scales = panel.scale;
  const int64_t stride = keys.key_stride;
  float* to = scores + begin * kPanel;
  // By value: what the stores below might alias would be loaded again after each of them.
  for_row_runs(end - begin, [=, &max, &ahead](auto run, int64_t key) HWY_ATTR {
    constexpr int R = run;
    ahead.fetch();
    PanelVector acc[R][kVectors];
    set_zero(acc);
    multiply_add(q, first + key * stride, stride, 1, dim, acc);
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      const PanelVector scale = hn::Load(d, scales + x * kLanes);
      PanelVector run_max = max[x];  // in a register: through memory, the next run would wait for it
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const PanelVector bias = log_counts == nullptr ? hn::Zero(d) : hn::Set(d, log_counts[key + r]);
        const PanelVector s = hn::MulAdd(acc[r][x], scale, bias);
        hn::Store(s, d, to + (key + r) * kPanel + x * kLanes);
        run_max = hn::Max(run_max, s);
      }
      max[x] = run_max;
    }
  });
}

// scores <- -inf where a row may not see the key; max over what is left
HWY_NOINLINE void mask_tile(const TileRange& range, float* HWY_RESTRICT scores, PanelVector (&max)[kVectors]) {
  const PanelTag d;
  const PanelVector hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int x = 0; x < kVectors; ++x) max[x] = hn::Set(d, kLowest);
  for (int64_t key = range.begin; key < range.end; ++key) {
    const bool full = key >= range.full_begin && key < range.full_end;
    for (int x = 0; x < kVectors; ++x) {
      float* at = scores + key * kPanel + x * kLanes;
      PanelVector s = hn::Load(d, at);
      if (!full) {
        s = hn::IfThenElse(visible(range, key, x), s, hidden);
        hn::Store(s, d, at);
      }
      max[x] = hn::Max(max[x], s);
    }
  }
}

// scores <- p = 2^(s - m'); updates the panel's maximum and sum; returns 2^(m - m')
HWY_NOINLINE void softmax_tile(const ForwardPanel& panel, int64_t begin, int64_t end,
                               const PanelVector (&tile_max)[kVectors], float* HWY_RESTRICT scores,
                               PanelVector (&rescale)[kVectors]) {
  const PanelTag d;
  PanelVector max[kVectors], sum[kVectors];
#pragma GCC unroll 8
  for (int x = 0; x < kVectors; ++x) {
    const PanelVector old = hn::Load(d, panel.max + x * kLanes);
    max[x] = hn::Max(old, tile_max[x]);
    rescale[x] = exp2(d, hn::Sub(old, max[x]));
    sum[x] = hn::Zero(d);
    hn::Store(max[x], d, panel.max + x * kLanes);
  }
  for (int64_t key = begin; key < end; ++key) {
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      float* at = scores + key * kPanel + x * kLanes;
      const PanelVector p = exp2(d, hn::Sub(hn::Load(d, at), max[x]));
      hn::Store(p, d, at);
      sum[x] = hn::Add(sum[x], p);
    }
  }
#pragma GCC unroll 8
  for (int x = 0; x < kVectors; ++x) {
    float* at = panel.sum + x * kLanes;
    hn::Store(hn::MulAdd(hn::Load(d, at), rescale[x], sum[x]), d, at);
  }
}

// out <- out rescale + p . v
HWY_NOINLINE void accumulate_values(const ForwardPanel& panel, const KeyRun& keys, int64_t tile, const TileRange& range,
                                    int64_t dim, const float* HWY_RESTRICT p, const PanelVector (&rescale)[kVectors]) {
  const PanelTag d;
  const float* values = keys.values + tile * keys.value_stride;
  // Hidden keys have p = 0, which hides their values too, unless those are inf or NaN.
  const bool selective =
      range.masked() && !(all_finite(values, keys.value_stride, range.begin, range.full_begin, dim) &&
                          all_finite(values, keys.value_stride, range.full_end, range.end, dim));
  const int64_t stride = keys.value_stride;
  const float* first_p = p + range.begin * kPanel;
  const float* first_value = values + range.begin * stride;
  const int64_t count = range.end - range.begin;
  float* out = panel.out;
  for_row_runs(dim, [=, &range, &rescale](auto run, int64_t column) HWY_ATTR {
    constexpr int R = run;
    PanelVector acc[R][kVectors];
    set_zero(acc);
    if (selective) {
      multiply_add_visible(p, values + column, stride, range, acc);
    } else {
      multiply_add(first_p, first_value + column, 1, stride, count, acc);
    }
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      const PanelVector factor = rescale[x];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* at = out + (column + r) * kPanel + x * kLanes;
        hn::Store(hn::MulAdd(hn::Load(d, at), factor, acc[r][x]), d, at);
      }
    }
  });
}

HWY_NOINLINE void read_tile(const Reading& reading, const ForwardPanel& panel, const KeyRun& keys, int64_t tile,
                            const TileRange& range, float* scores, Ahead& ahead) {
  const PanelTag d;
  PanelVector max[kVectors], rescale[kVectors];
  for (int x = 0; x < kVectors; ++x) max[x] = hn::Set(d, kLowest);
  score_tile(panel, keys, tile, range.begin, range.end, reading.key_dim, scores, max, ahead);
  if (range.masked()) mask_tile(range, scores, max);
  softmax_tile(panel, range.begin, range.end, max, scores, rescale);
  accumulate_values(panel, keys, tile, range, reading.value_dim, scores, rescale);
}

// best <- max(best, keys . k), strictly, so that the first of equals stays and NaN never enters
HWY_NOINLINE void search_tile(const float* panel, const KeyRun& keys, int64_t tile, int64_t count, int64_t dim,
                              float* best_similarity, int32_t* best_centroid, Ahead& ahead) {
  const PanelTag d;
  const hn::RebindToSigned<PanelTag> di;
  PanelVector best[kVectors];
  hn::Vec<decltype(di)> index[kVectors];
  for (int x = 0; x < kVectors; ++x) {
    best[x] = hn::Load(d, best_similarity + x * kLanes);
    index[x] = hn::Load(di, best_centroid + x * kLanes);
  }
  const float* first = keys.keys + tile * keys.key_stride;
  const int64_t stride = keys.key_stride;
  for_row_runs(count, [=, &best, &index, &ahead](auto run, int64_t key) HWY_ATTR {
    constexpr int R = run;
    ahead.fetch();
    PanelVector acc[R][kVectors];
    set_zero(acc);
    multiply_add(panel, first + key * stride, stride, 1, dim, acc);
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      PanelVector run_best = best[x];
      auto run_index = index[x];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto centroid = hn::Set(di, static_cast<int32_t>(tile + key + r));
        const auto better = hn::Gt(acc[r][x], run_best);
        run_best = hn::IfThenElse(better, acc[r][x], run_best);
        run_index = hn::IfThenElse(hn::RebindMask(di, better), centroid, run_index);
      }
      best[x] = run_best;
      index[x] = run_index;
    }
  });
  for (int x = 0; x < kVectors; ++x) {
    hn::Store(best[x], d, best_similarity + x * kLanes);
    hn::Store(index[x], di, best_centroid + x * kLanes);
  }
}

HWY_NOINLINE void finish_panel(const ForwardBlock& block, const ForwardPanel& panel) {
  const PanelTag d;
  const Reading& reading = *block.reading;
  for (int x = 0; x < kVectors; ++x) {
    const PanelVector inverse = hn::Div(hn::Set(d, 1.0f), hn::Load(d, panel.sum + x * kLanes));
    for (int64_t i = 0; i < reading.value_dim; ++i) {
      float* at = panel.out + i * kPanel + x * kLanes;
      hn::Store(hn::Mul(hn::Load(d, at), inverse), d, at);
    }
  }
  float* rows[kPanel] = {};
  for (int64_t lane = 0; lane < panel.rows; ++lane) {
    rows[lane] = block.o.at(panel.first_row + lane, reading.group);
    if (block.lse.data != nullptr) {
      *block.lse.at(panel.first_row + lane, reading.group) = (panel.max[lane] + std::log2(panel.sum[lane])) * kLn2;
    }
  }
  unpack_panel(panel.out, reading.value_dim, rows, panel.rows);
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
  float* scores = workspace.scores.ensure(kTile * kPanel);

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
    pack_panel(rows, dim, panel.q);
    std::memset(panel.out, 0, reading.value_dim * kPanel * sizeof(float));
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const int64_t row = panel.first_row + std::min(lane, panel.rows - 1);
      panel.scale[lane] = reading.beta[row % reading.group] * kLog2E;
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

  const bool dictionary_far = beyond_cache(reading, reading.dictionary.count, 1);
  for (int64_t tile = 0; tile < reading.dictionary.count; tile += kTile) {
    const KeyRun& keys = reading.dictionary;
    const int64_t count = std::min(kTile, keys.count - tile);
    const TileRange range = TileRange::all(count);
    Ahead ahead;
    if (dictionary_far) ahead.add(reading, keys, tile + count, std::min(kTile, keys.count - tile - count));
    ahead.add_share(block.upcoming, tile, tile + count, keys.count);
    ahead.spread((panels + search_panels) * (count / kRun));
    for (int64_t p = 0; p < panels; ++p) read_tile(reading, panel_at(p), keys, tile, range, scores, ahead);
    for (int64_t p = 0; p < search_panels; ++p) {
      search_tile(search_memory + p * search_floats, keys, tile, count, dim, search_similarity(p), search_centroid(p),
                  ahead);
    }
  }
  const int64_t first_tile = panels == 0 ? 0 : reading.first(block.first_row) / kTile * kTile;
  const int64_t window_end = panels == 0 ? 0 : reading.last(block.first_row + block.rows - 1) + 1;
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
