// The keys of a tile that a panel's rows see: in a dictionary all, in a window those that mask and span allow.
#if defined(OVQ_OPS_ATTENTION_TILE_RANGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_TILE_RANGE_INL_H_
#undef OVQ_OPS_ATTENTION_TILE_RANGE_INL_H_
#else
#define OVQ_OPS_ATTENTION_TILE_RANGE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "ovq/core/matmul-inl.h"
#include "ovq/ops/attention/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The keys [begin, end) that some row of a vector sees; all of its rows see [full_begin, full_end).
struct VectorRange {
  int64_t begin = 0, full_begin = 0, full_end = 0, end = 0;

  bool empty() const { return begin >= end; }
  bool masked() const { return begin < full_begin || full_end < end; }
};

// The part of a tile that a panel reads. Of its keys [begin, end), those before `shared_begin` are seen only by the
// lower vector, and those from `shared_end` on only by the upper one. Panels that do not consist of two vectors make no
// such distinction.
struct TileRange {
  int64_t begin = 0, shared_begin = 0, shared_end = 0, end = 0;
  int64_t full_begin = 0, full_end = 0;  // seen by all rows
  VectorRange vectors[kVectors];
  alignas(64) float first[kPanel];  // of each row, relative to the tile; only set where the range is masked
  alignas(64) float last[kPanel];

  bool empty() const { return begin >= end; }
  bool masked() const { return begin < full_begin || full_end < end; }

  // All `count` keys of a tile, seen by all of the panel's `rows`.
  static TileRange all(int64_t count, int64_t rows) {
    TileRange range;
    range.end = range.shared_end = range.full_end = count;
    range.shared_begin = used_lanes(rows) < kPanel ? count : 0;
    for (int x = 0; x < kVectors; ++x) {
      if (x * kLanes < used_lanes(rows)) range.vectors[x] = {0, 0, count, count};
    }
    return range;
  }
};

// The window's keys [tile, tile + count) that the rows first_row ... first_row + rows - 1 see.
inline VectorRange rows_range(const Reading& reading, int64_t first_row, int64_t rows, int64_t tile, int64_t count) {
  const int64_t last_row = first_row + rows - 1;
  VectorRange range;
  range.begin = std::max<int64_t>(0, reading.first(first_row) - tile);
  range.end = std::min(count, reading.last(last_row) + 1 - tile);
  if (rows <= 0 || range.empty()) return {};
  range.full_begin = std::max(range.begin, reading.first(last_row) - tile);
  range.full_end = std::min(range.end, reading.last(first_row) + 1 - tile);
  if (range.full_begin >= range.full_end) range.full_begin = range.full_end = range.end;
  return range;
}

HWY_NOINLINE TileRange window_range(const Reading& reading, int64_t first_row, int64_t rows, int64_t tile,
                                    int64_t count) {
  const VectorRange all = rows_range(reading, first_row, rows, tile, count);
  TileRange range;
  range.begin = range.shared_begin = all.begin;
  range.end = range.shared_end = all.end;
  range.full_begin = all.full_begin;
  range.full_end = all.full_end;
  if (range.empty()) return range;
  for (VectorRange& vector : range.vectors) vector = all;
  if constexpr (kHalves) {
    VectorRange& lower = range.vectors[0];
    VectorRange& upper = range.vectors[kVectors - 1];
    lower = rows_range(reading, first_row, std::min<int64_t>(rows, kLanes), tile, count);
    upper = rows_range(reading, first_row + kLanes, rows - kLanes, tile, count);
    range.shared_begin = upper.empty() ? all.end : upper.begin;
    range.shared_end = lower.empty() ? all.begin : upper.empty() ? all.end : lower.end;
  }
  if (!range.masked()) return range;
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    const int64_t row = first_row + std::min(lane, rows - 1);
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

// f(slice, vector, begin, end) for the parts of a range, `vector` being the first of the slice
template <class F>
HWY_INLINE void for_range_parts(const TileRange& range, F&& f) {
  if constexpr (kHalves) {
    if (range.begin < range.shared_begin) f(Lower(), 0, range.begin, range.shared_begin);
  }
  if (range.shared_begin < range.shared_end) f(Whole(), 0, range.shared_begin, range.shared_end);
  if constexpr (kHalves) {
    if (range.shared_end < range.end) f(Lower(), 1, range.shared_end, range.end);
  }
}

// f(slice, vector) for the vectors that see anything of a range
template <class F>
HWY_INLINE void for_seeing_vectors(const TileRange& range, F&& f) {
  if constexpr (kHalves) {
    if (range.vectors[1].empty()) return f(Lower(), 0);
    if (range.vectors[0].empty()) return f(Lower(), 1);
  }
  f(Whole(), 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
