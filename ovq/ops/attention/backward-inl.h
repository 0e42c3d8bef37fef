// Backward of a block of rows, tile by tile, with the scores recomputed from the saved log-sum-exp:
//
//   per tile and panel   dP <- d_o . v - delta,  P <- 2^(s - lse),  dS <- P dP,  d_q' <- d_q' + dS . k
//   per tile             d_v <- d_v + P^T . d_o,  d_k <- d_k + dS^T . (beta q);  with weights d_log_count <- + sum dS
//   at the end           d_q <- beta d_q',  d_beta <- d_beta + q . d_q'            delta = o . d_o per row
//
// Five products with the same register tile. The tiles of a block are independent except for d_q', which is summed in
// tile order.
#if defined(OVQ_OPS_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_BACKWARD_INL_H_
#undef OVQ_OPS_ATTENTION_BACKWARD_INL_H_
#else
#define OVQ_OPS_ATTENTION_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "ovq/core/exp2-inl.h"
#include "ovq/core/matmul-inl.h"
#include "ovq/ops/attention/forward-inl.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/attention/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline int64_t padded_to_panel(int64_t dim) { return round_up(dim, kPanel); }

// A packed block. Panels have the rows in their lanes; columns [dim / kPanel][rows][kPanel] have the elements of a row
// in their lanes.
struct PackedBlock {
  int64_t panels, rows;  // rows padded to whole panels
  float *q, *d_o;        // [panels][dim][kPanel]
  float *beta_q_columns, *d_o_columns;
  float *scale, *lse, *delta;  // [rows]; lse in base 2
  float* scratch;

  PackedBlock(const BackwardBlock& block, float* memory) {
    const Reading& reading = *block.reading;
    panels = (block.rows + kPanel - 1) / kPanel;
    rows = panels * kPanel;
    q = memory;
    d_o = q + rows * reading.key_dim;
    beta_q_columns = d_o + rows * reading.value_dim;
    d_o_columns = beta_q_columns + rows * padded_to_panel(reading.key_dim);
    scale = d_o_columns + rows * padded_to_panel(reading.value_dim);
    lse = scale + rows;
    delta = lse + rows;
    scratch = delta + rows;
  }

  static int64_t floats(const Reading& reading) {
    const int64_t key_dim = reading.key_dim, value_dim = reading.value_dim;
    return kBlockRows * (key_dim + value_dim + padded_to_panel(key_dim) + padded_to_panel(value_dim) + 3) +
           (kPanel + 2) * (padded(key_dim) + padded(value_dim));
  }
};

// P and dS of a tile as [key][row], so that sums over both rows (as lanes) and keys (as broadcasts) are possible. With
// a stride of 128 floats all keys would map to the same few sets of L1.
inline constexpr int64_t kWeightStride = kBlockRows + 16;

// columns[:, row, :] <- factor * from
HWY_INLINE void pack_columns(const float* HWY_RESTRICT from, int64_t dim, float factor, int64_t row, int64_t rows,
                             float* HWY_RESTRICT columns) {
  const PanelTag d;
  const PanelVector scale = hn::Set(d, factor);
  const auto at = [=](int64_t i) { return columns + (i / kPanel * rows + row) * kPanel + i % kPanel; };
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) hn::Store(hn::Mul(scale, hn::LoadU(d, from + i)), d, at(i));
  for (; i < dim; ++i) *at(i) = factor * from[i];
}

// delta[lane] <- o . d_o
HWY_NOINLINE void pack_delta(const float* o_panel, const float* d_o_panel, int64_t rows, int64_t dim, float* delta) {
  const PanelTag d;
  for (int x = 0; x * kLanes < rows; ++x) {
    PanelVector sum = hn::Zero(d);
    for (int64_t i = 0; i < dim; ++i) {
      const int64_t at = i * kPanel + x * kLanes;
      sum = hn::MulAdd(hn::Load(d, o_panel + at), hn::Load(d, d_o_panel + at), sum);
    }
    hn::Store(sum, d, delta + x * kLanes);
  }
}

HWY_NOINLINE void backward_pack(const BackwardBlock& block, Workspace& shared) {
  const Reading& reading = *block.reading;
  const int64_t key_dim = reading.key_dim, value_dim = reading.value_dim;
  const PackedBlock packed(block, shared.packed.ensure(PackedBlock::floats(reading)));
  // The padding of a column vector takes part in the products.
  constexpr int64_t kUnit = kHalves ? kLanes : kPanel;
  if (key_dim % kUnit != 0) {
    std::memset(packed.beta_q_columns, 0, packed.rows * padded_to_panel(key_dim) * sizeof(float));
  }
  if (value_dim % kUnit != 0) {
    std::memset(packed.d_o_columns, 0, packed.rows * padded_to_panel(value_dim) * sizeof(float));
  }
  float* o_panel = packed.scratch + round_up((kPanel + 1) * key_dim, kPanel);
  float* zeros = o_panel + value_dim * kPanel;
  std::memset(zeros, 0, value_dim * sizeof(float));
  for (int64_t p = 0; p < packed.panels; ++p) {
    const int64_t first = block.first_row + p * kPanel;
    const int64_t count = std::min(kPanel, block.first_row + block.rows - first);
    const float* q[kPanel];
    query_rows(reading, first, count, packed.scratch, q);
    pack_panel(q, used_lanes(count), key_dim, packed.q + p * key_dim * kPanel);
    const float* o[kPanel];
    const float* d_o[kPanel];
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const bool real = lane < count;
      const int64_t row = first + lane;
      o[lane] = real ? block.o.at(row, reading.group) : zeros;
      d_o[lane] = real ? block.d_o.at(row, reading.group) : zeros;
      packed.scale[p * kPanel + lane] = real ? reading.beta_of(row) * kLog2E : 0.0f;
      // 2^(s - lse) is zero in lanes without a row.
      packed.lse[p * kPanel + lane] = real ? *block.lse.at(row, reading.group) * kLog2E : 1e30f;
    }
    float* d_o_panel = packed.d_o + p * value_dim * kPanel;
    pack_panel(d_o, used_lanes(count), value_dim, d_o_panel);
    pack_panel(o, used_lanes(count), value_dim, o_panel);
    pack_delta(o_panel, d_o_panel, count, value_dim, packed.delta + p * kPanel);
    for (int64_t lane = 0; lane < count; ++lane) {
      const int64_t row = p * kPanel + lane;
      const float beta = reading.beta_of(first + lane);
      pack_columns(q[lane], key_dim, beta, row, packed.rows, packed.beta_q_columns);
      pack_columns(d_o[lane], value_dim, 1.0f, row, packed.rows, packed.d_o_columns);
    }
  }
}

// P and dS of one panel and the keys [begin, end) of a tile, for the slice's vectors from `vector` on, stored in the
// panel's lanes of the weights.
template <class S>
HWY_NOINLINE void probabilities(const Reading& reading, const PackedBlock& packed, int64_t panel, int vector,
                                const KeyRun& run_of_keys, int64_t tile, int64_t begin, int64_t end,
                                float* HWY_RESTRICT panel_p, float* HWY_RESTRICT panel_ds, Ahead& ahead) {
  const PanelTag d;
  const int64_t lane = panel * kPanel + vector * kLanes;
  const int64_t key_dim = reading.key_dim, value_dim = reading.value_dim;
  const float* q = packed.q + panel * key_dim * kPanel + vector * kLanes;
  const float* d_o = packed.d_o + panel * value_dim * kPanel + vector * kLanes;
  const float* scale = packed.scale + lane;
  const float* lse = packed.lse + lane;
  const float* delta = packed.delta + lane;
  float* p = panel_p + vector * kLanes;
  float* ds = panel_ds + vector * kLanes;
  const KeyRun keys = run_of_keys;
  for_row_runs(end - begin, [=, &ahead](auto run, int64_t first) HWY_ATTR {
    constexpr int R = run;
    ahead.fetch();
    const int64_t key = begin + first;
    const int64_t index = tile + key;
    // Copies, as in the forward, so that they stay in registers.
    const float* const biases = keys.log_counts == nullptr ? kNoBias : keys.log_counts + index;
    const float *const scale_of = scale, *const lse_of = lse;
    float* const p_run = p + key * kWeightStride;
    float* const ds_run = ds + key * kWeightStride;
    Tile<R> acc;
    set_zero<S>(acc);
    multiply_add<S>(d_o, keys.values + index * keys.value_stride, keys.value_stride, 1, value_dim, acc);
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) {
      const PanelVector subtracted = hn::Load(d, delta + x * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        hn::Store(hn::Sub(acc[r][x], subtracted), d, ds_run + r * kWeightStride + x * kLanes);
      }
    }
    set_zero<S>(acc);
    multiply_add<S>(q, keys.keys + index * keys.key_stride, keys.key_stride, 1, key_dim, acc);
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) {
      const PanelVector scale_x = hn::Load(d, scale_of + x * kLanes), lse_x = hn::Load(d, lse_of + x * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const int64_t at = r * kWeightStride + x * kLanes;
        const PanelVector s = hn::MulAdd(acc[r][x], scale_x, hn::Set(d, biases[r]));
        const PanelVector probability = exp2(d, hn::Sub(s, lse_x));
        hn::Store(probability, d, p_run + at);
        hn::Store(hn::Mul(probability, hn::Load(d, ds_run + at)), d, ds_run + at);
      }
    }
  });
}

// Sets a vector's weights to 0 where a row may not see the key.
HWY_NOINLINE void mask_weights(const TileRange& range, int x, float* p, float* ds) {
  const PanelTag d;
  const VectorRange& vector = range.vectors[x];
  for (int64_t key = vector.begin; key < vector.end; ++key) {
    if (key == vector.full_begin) key = vector.full_end;
    if (key >= vector.end) break;
    const auto mask = visible(range, key, x);
    const int64_t at = key * kWeightStride + x * kLanes;
    hn::Store(hn::IfThenElseZero(mask, hn::Load(d, p + at)), d, p + at);
    hn::Store(hn::IfThenElseZero(mask, hn::Load(d, ds + at)), d, ds + at);
  }
}

// Sets a vector's weights of the keys [begin, end) to 0.
HWY_INLINE void clear_weights(int x, int64_t begin, int64_t end, float* p, float* ds) {
  const PanelTag d;
  for (int64_t key = begin; key < end; ++key) {
    hn::Store(hn::Zero(d), d, p + key * kWeightStride + x * kLanes);
    hn::Store(hn::Zero(d), d, ds + key * kWeightStride + x * kLanes);
  }
}

// d_q' <- (add ? d_q' : 0) + dS . k for the slice's vectors from `vector` on
template <class S>
HWY_NOINLINE void query_gradient(const KeyRun& keys, int64_t tile, const TileRange& range, int vector, int64_t dim,
                                 const float* panel_ds, float* panel_d_q, bool add) {
  const PanelTag d;
  const float* first = keys.keys + tile * keys.key_stride;
  const float* ds = panel_ds + vector * kLanes;
  float* d_q = panel_d_q + vector * kLanes;
  const int64_t stride = keys.key_stride;
  for_row_runs(dim, [=, &range](auto run, int64_t column) HWY_ATTR {
    constexpr int R = run;
    Tile<R> acc;
    set_zero<S>(acc);
    multiply_add_range<S>(ds, kWeightStride, first + column, stride, range, acc);
    float* const sums = d_q + column * kPanel;
    if (add) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int x = S::kBegin; x < S::kEnd; ++x) {
          acc[r][x] = hn::Add(hn::Load(d, sums + r * kPanel + x * kLanes), acc[r][x]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int x = S::kBegin; x < S::kEnd; ++x) hn::Store(acc[r][x], d, sums + r * kPanel + x * kLanes);
    }
  });
}

// The rows of a block that see the keys of a tile: in the window, the rows whose visible keys begin and end there.
struct KeyRows {
  const Reading* reading;
  int64_t first_row, rows;  // of the block
  int64_t tile;             // first key
  bool in_dictionary;

  // The rows [begin, end) of the block that see one of the keys [key, key + count) of the tile
  int64_t begin(int64_t key) const {
    if (in_dictionary) return 0;
    const int64_t time = tile + key - reading->first_last;
    return std::clamp<int64_t>(time * reading->group - first_row, 0, rows);
  }
  int64_t end(int64_t key, int64_t count) const {
    if (in_dictionary || reading->span > tile + key + count + reading->window.count) return rows;
    const int64_t time = tile + key + count - 1 + reading->span - reading->first_last;
    return std::clamp<int64_t>(time * reading->group - first_row, 0, rows);
  }
};

// gradient[key][:] <- gradient[key][:] + sum over rows of weights[key][row] columns[:, row, :]
HWY_NOINLINE void key_gradient(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT columns,
                               int64_t packed_rows, int64_t dim, int64_t begin, int64_t end, const KeyRows& key_rows,
                               float* HWY_RESTRICT gradient, int64_t stride, Ahead& ahead) {
  const PanelTag d;
  for (int64_t column = 0; column < dim; column += kPanel) {
    const float* lanes = columns + column * packed_rows;
    for_used_vectors(dim - column, [=, &key_rows, &ahead](auto slice) HWY_ATTR {
      using S = decltype(slice);
      for_row_runs(end - begin, [=, &key_rows, &ahead](auto run, int64_t first) HWY_ATTR {
        constexpr int R = run;
        ahead.fetch();
        const int64_t key = begin + first;
        const int64_t first_row = key_rows.begin(key), end_row = key_rows.end(key, R);
        Tile<R> acc;
        set_zero<S>(acc);
        multiply_add<S>(lanes + first_row * kPanel, weights + key * kWeightStride + first_row, kWeightStride, 1,
                        end_row - first_row, acc);
        float* const sums = gradient + key * stride + column;
        const int64_t row_stride = stride;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
          for (int x = S::kBegin; x < S::kEnd; ++x) {
            float* at = sums + r * row_stride + x * kLanes;
            hn::Store(hn::Add(hn::Load(d, at), acc[r][x]), d, at);
          }
        }
      });
    });
  }
}

// gradient[key] <- gradient[key] + sum over rows of weights[key][row]
HWY_NOINLINE void log_count_gradient(const float* HWY_RESTRICT weights, int64_t begin, int64_t end,
                                     const KeyRows& key_rows, float* HWY_RESTRICT gradient) {
  const PanelTag d;
  for (int64_t key = begin; key < end; ++key) {
    const float* of_key = weights + key * kWeightStride;
    PanelVector sum = hn::Zero(d);
    int64_t row = key_rows.begin(key);
    const int64_t end_row = key_rows.end(key, 1);
    for (; row + kLanes <= end_row; row += kLanes) sum = hn::Add(sum, hn::LoadU(d, of_key + row));
    float rest = 0.0f;
    for (; row < end_row; ++row) rest += of_key[row];
    gradient[key] += hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
  }
}

HWY_NOINLINE void backward_tile(const BackwardBlock& block, const Workspace& shared, int64_t tile_index, Workspace& own,
                                float* d_q, bool add) {
  const Reading& reading = *block.reading;
  const PackedBlock packed(block, shared.packed.data());
  const bool in_dictionary = tile_index < block.dictionary_tiles();
  const KeyRun& keys = in_dictionary ? reading.dictionary : reading.window;
  const KeyRunGradient& gradient = in_dictionary ? block.d_dictionary : block.d_window;
  const int64_t size = in_dictionary ? kBackwardTile : block.window_tile();
  const int64_t tile =
      in_dictionary ? tile_index * size : block.window_begin() + (tile_index - block.dictionary_tiles()) * size;
  const int64_t read_end = in_dictionary ? keys.count : block.window_end();
  const int64_t count = std::min(size, read_end - tile);
  float* p = own.scores.ensure(2 * size * kWeightStride);
  float* ds = p + size * kWeightStride;
  // While the probabilities are computed, their gradients' destination is fetched; while the gradients are summed, the
  // next tile.
  const bool far = beyond_cache(reading, in_dictionary ? keys.count : read_end - block.window_begin(), 2);
  const int64_t runs = count / kRun;
  Ahead gradients_ahead, keys_ahead;
  if (far) {
    const KeyRun sums{gradient.keys, gradient.values, nullptr, gradient.key_stride, gradient.value_stride};
    gradients_ahead.add(reading, sums, tile - gradient.first, count);
    keys_ahead.add(reading, keys, tile + count, std::min(size, read_end - tile - count));
  }
  // With a dictionary, the tiles of the window add nothing to its prefetches.
  if (in_dictionary || block.dictionary_tiles() == 0) {
    const int64_t first = in_dictionary ? 0 : block.window_begin();
    keys_ahead.add_share(block.upcoming, tile - first, tile - first + count, read_end - first);
  }
  gradients_ahead.spread(packed.panels * runs);
  keys_ahead.spread((padded_to_panel(reading.key_dim) + padded_to_panel(reading.value_dim)) / kPanel * runs);

  int64_t begin = count, end = 0;
  for (int64_t panel = 0; panel < packed.panels; ++panel) {
    const int64_t first_row = block.first_row + panel * kPanel;
    const int64_t rows = std::min(kPanel, block.first_row + block.rows - first_row);
    const TileRange range =
        in_dictionary ? TileRange::all(count, rows) : window_range(reading, first_row, rows, tile, count);
    float* panel_p = p + panel * kPanel;
    float* panel_ds = ds + panel * kPanel;
    float* panel_d_q = d_q + panel * reading.key_dim * kPanel;
    for_range_parts(range, [&](auto slice, int vector, int64_t part_begin, int64_t part_end) HWY_ATTR {
      probabilities<decltype(slice)>(reading, packed, panel, vector, keys, tile, part_begin, part_end, panel_p,
                                     panel_ds, gradients_ahead);
    });
    for (int x = 0; x * kLanes < used_lanes(rows); ++x) {
      const VectorRange& vector = range.vectors[x];
      if (vector.masked()) mask_weights(range, x, panel_p, panel_ds);
      // A run of keys may extend beyond what the vector sees.
      clear_weights(x, std::max<int64_t>(0, vector.begin - kRun), vector.begin, panel_p, panel_ds);
      clear_weights(x, vector.end, std::min(count, vector.end + kRun), panel_p, panel_ds);
      if (vector.empty() && !add) {
        for (int64_t i = 0; i < reading.key_dim; ++i) {
          std::memset(panel_d_q + i * kPanel + x * kLanes, 0, kLanes * sizeof(float));
        }
      }
    }
    if (range.empty()) continue;
    begin = std::min(begin, range.begin);
    end = std::max(end, range.end);
    for_seeing_vectors(range, [&](auto slice, int vector) HWY_ATTR {
      query_gradient<decltype(slice)>(keys, tile, range, vector, reading.key_dim, panel_ds, panel_d_q, add);
    });
  }
  const KeyRows key_rows = {&reading, block.first_row, block.rows, tile, in_dictionary};
  key_gradient(p, packed.d_o_columns, packed.rows, reading.value_dim, begin, end, key_rows,
               gradient.values + (tile - gradient.first) * gradient.value_stride, gradient.value_stride, keys_ahead);
  key_gradient(ds, packed.beta_q_columns, packed.rows, reading.key_dim, begin, end, key_rows,
               gradient.keys + (tile - gradient.first) * gradient.key_stride, gradient.key_stride, keys_ahead);
  if (gradient.log_counts != nullptr) {
    log_count_gradient(ds, begin, end, key_rows, gradient.log_counts + tile - gradient.first);
  }
}

HWY_NOINLINE void backward_finish(const BackwardBlock& block, const Workspace& shared, const float* d_q) {
  const Reading& reading = *block.reading;
  const PackedBlock packed(block, shared.packed.data());
  const int64_t dim = reading.key_dim;
  for (int64_t p = 0; p < packed.panels; ++p) {
    const int64_t first = block.first_row + p * kPanel;
    const int64_t count = std::min(kPanel, block.first_row + block.rows - first);
    alignas(64) float d_beta[kPanel];
    pack_delta(packed.q + p * dim * kPanel, d_q + p * dim * kPanel, count, dim, d_beta);
    float* rows[kPanel];
    for (int64_t lane = 0; lane < kPanel; ++lane) rows[lane] = packed.scratch + lane * dim;
    unpack_panel(d_q + p * dim * kPanel, dim, rows, count);
    float* rotated = packed.scratch + kPanel * dim;
    for (int64_t lane = 0; lane < count; ++lane) {
      const int64_t row = first + lane, head = row % reading.group;
      block.d_beta[head] += d_beta[lane];
      const float* from = rows[lane];
      if (reading.rotary != nullptr) {
        rotate(from, reading.rotary + row / reading.group * dim, dim, -1.0f, rotated);
        from = rotated;
      }
      float* to = block.d_q.at(row, reading.group);
      for (int64_t i = 0; i < dim; ++i) to[i] = reading.beta[head] * from[i];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
