// Packing: kPanel rows of a tensor <-> a panel [dim][kPanel] whose lanes are the rows.
#if defined(OVQ_OPS_ATTENTION_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_PANEL_INL_H_
#undef OVQ_OPS_ATTENTION_PANEL_INL_H_
#else
#define OVQ_OPS_ATTENTION_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "ovq/core/matmul-inl.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/rotary/rotate.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// panel[i][lane] <- rows[lane][i] for i in [begin, end)
HWY_INLINE void pack_columns_of_rows(const float* const (&rows)[kPanel], int64_t begin, int64_t end, float* panel) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t lane = 0; lane < kPanel; ++lane) panel[i * kPanel + lane] = rows[lane][i];
  }
}

// rows[lane][i] <- panel[i][lane] for i in [begin, end) and the lanes [lane, end_lane)
HWY_INLINE void unpack_columns_of_rows(const float* panel, int64_t begin, int64_t end, float* const (&rows)[kPanel],
                                       int64_t lane, int64_t end_lane) {
  for (; lane < end_lane; ++lane) {
    for (int64_t i = begin; i < end; ++i) rows[lane][i] = panel[i * kPanel + lane];
  }
}

#if HWY_TARGET == HWY_SCALAR

HWY_NOINLINE void pack_panel(const float* const (&rows)[kPanel], int64_t, int64_t dim, float* HWY_RESTRICT panel) {
  pack_columns_of_rows(rows, 0, dim, panel);
}

HWY_NOINLINE void unpack_panel(const float* HWY_RESTRICT panel, int64_t dim, float* const (&rows)[kPanel],
                               int64_t count) {
  unpack_columns_of_rows(panel, 0, dim, rows, 0, count);
}

#else

// Transposes the 4 x 4 blocks with rows a, b, c, d, in each 128-bit block of the vectors.
template <class Tag, class Vector = hn::Vec<Tag>>
HWY_INLINE void transpose(Tag tag, Vector& a, Vector& b, Vector& c, Vector& d) {
  const hn::Repartition<double, Tag> wide;
  const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(tag, a, b));   // a0 b0 a1 b1
  const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(tag, a, b));  // a2 b2 a3 b3
  const auto cd_low = hn::BitCast(wide, hn::InterleaveLower(tag, c, d));
  const auto cd_high = hn::BitCast(wide, hn::InterleaveUpper(tag, c, d));
  a = hn::BitCast(tag, hn::InterleaveLower(wide, ab_low, cd_low));
  b = hn::BitCast(tag, hn::InterleaveUpper(wide, ab_low, cd_low));
  c = hn::BitCast(tag, hn::InterleaveLower(wide, ab_high, cd_high));
  d = hn::BitCast(tag, hn::InterleaveUpper(wide, ab_high, cd_high));
}

// Loads four floats, or eight elements of half the size, of every fourth row from column i on: rows[0] into the first
// 128 bits, rows[4] into the next.
template <class Tag, class T>
HWY_INLINE hn::Vec<Tag> load_blocks(Tag tag, const T* const* rows, int64_t i) {
  if constexpr (hn::MaxLanes(Tag()) > 4) {
    const hn::Half<Tag> half;
    return hn::Combine(tag, load_blocks(half, rows + hn::MaxLanes(half), i), load_blocks(half, rows, i));
  } else {
    return hn::LoadU(tag, reinterpret_cast<const float*>(rows[0] + i));
  }
}

// The inverse.
template <class Tag>
HWY_INLINE void store_blocks(Tag tag, hn::Vec<Tag> blocks, float* const* rows, int64_t i) {
  if constexpr (hn::MaxLanes(Tag()) > 4) {
    const hn::Half<Tag> half;
    store_blocks(half, hn::LowerHalf(half, blocks), rows, i);
    store_blocks(half, hn::UpperHalf(half, blocks), rows + hn::MaxLanes(half), i);
  } else {
    hn::StoreU(blocks, tag, rows[0] + i);
  }
}

// Packs the first `lanes` lanes, in whole vectors.
HWY_NOINLINE void pack_panel(const float* const (&rows)[kPanel], int64_t lanes, int64_t dim,
                             float* HWY_RESTRICT panel) {
  const PanelTag d;
  const int64_t whole = dim / 4 * 4;
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    const float* const* at = rows + lane;
    for (int64_t i = 0; i < whole; i += 4) {
      PanelVector a = load_blocks(d, at, i), b = load_blocks(d, at + 1, i);
      PanelVector c = load_blocks(d, at + 2, i), e = load_blocks(d, at + 3, i);
      transpose(d, a, b, c, e);
      float* to = panel + i * kPanel + lane;
      hn::Store(a, d, to);
      hn::Store(b, d, to + kPanel);
      hn::Store(c, d, to + 2 * kPanel);
      hn::Store(e, d, to + 3 * kPanel);
    }
  }
  pack_columns_of_rows(rows, whole, dim, panel);
}

HWY_NOINLINE void unpack_panel(const float* HWY_RESTRICT panel, int64_t dim, float* const (&rows)[kPanel],
                               int64_t count) {
  const PanelTag d;
  const int64_t whole = dim / 4 * 4;
  int64_t lane = 0;
  for (; lane + kLanes <= count; lane += kLanes) {
    float* const* at = rows + lane;
    for (int64_t i = 0; i < whole; i += 4) {
      const float* from = panel + i * kPanel + lane;
      PanelVector a = hn::Load(d, from), b = hn::Load(d, from + kPanel);
      PanelVector c = hn::Load(d, from + 2 * kPanel), e = hn::Load(d, from + 3 * kPanel);
      transpose(d, a, b, c, e);
      store_blocks(d, a, at, i);
      store_blocks(d, b, at + 1, i);
      store_blocks(d, c, at + 2, i);
      store_blocks(d, e, at + 3, i);
    }
  }
  unpack_columns_of_rows(panel, whole, dim, rows, 0, lane);
  unpack_columns_of_rows(panel, 0, dim, rows, lane, count);
}

#endif  // HWY_TARGET == HWY_SCALAR

// The addresses of the queries first ... first + count - 1, rotated if needed; unused lanes point to zeros. `scratch`
// holds (kPanel + 1) * key_dim floats.
HWY_INLINE void query_rows(const Reading& reading, int64_t first, int64_t count, float* scratch,
                           const float* (&rows)[kPanel]) {
  const int64_t dim = reading.key_dim;
  std::memset(scratch, 0, dim * sizeof(float));
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    rows[lane] = lane < count ? reading.q.at(first + lane, reading.group) : scratch;
    if (lane < count && reading.rotary != nullptr) {
      float* rotated = scratch + (lane + 1) * dim;
      rotate(rows[lane], reading.rotary + (first + lane) / reading.group * dim, dim, 1.0f, rotated);
      rows[lane] = rotated;
    }
  }
}

inline constexpr int64_t kLine = 64 / sizeof(float);  // of a cache line

// Prefetches rows into L2, spread over the preceding products. All at once would exceed the cache misses that a core
// can have in flight, and most would be dropped.
class Ahead {
 public:
  void add(const Upcoming& rows) {
    if (rows.count > 0 && added_ < kMost) list_[added_++] = rows;  // rows beyond the list are not prefetched
  }
  // The keys [first, first + count) and their values
  void add(const Reading& reading, const KeyRun& keys, int64_t first, int64_t count) {
    if (count <= 0) return;
    add({keys.keys + first * keys.key_stride, keys.key_stride, count, reading.key_dim});
    add({keys.values + first * keys.value_stride, keys.value_stride, count, reading.value_dim});
  }
  // Adds the share [begin, end) of `total` of each.
  void add_share(std::span<const Upcoming> all, int64_t begin, int64_t end, int64_t total) {
    for (const Upcoming& rows : all) {
      const int64_t first = rows.count * begin / total;
      add({rows.data + first * rows.stride, rows.stride, rows.count * end / total - first, rows.dim});
    }
  }
  // Spreads everything over `calls` calls of fetch().
  void spread(int64_t calls) {
    int64_t rows = 0;
    for (int i = 0; i < added_; ++i) rows += list_[i].count;
    per_call_ = calls > 0 ? (rows + calls - 1) / calls : 0;
  }

  HWY_INLINE void fetch() {
    for (int64_t i = 0; i < per_call_ && now_ < added_; ++i) {
      const Upcoming& rows = list_[now_];
      const float* row = rows.data + row_ * rows.stride;
      for (int64_t j = 0; j < rows.dim; j += kLine) __builtin_prefetch(row + j, 0, 2);
      if (++row_ == rows.count) {
        row_ = 0;
        ++now_;
      }
    }
  }

 private:
  static constexpr int kMost = 12;  // the backward needs 10: keys and values of a tile, eight tensors of the next chunk

  Upcoming list_[kMost];
  int added_ = 0, now_ = 0;
  int64_t per_call_ = 0, row_ = 0;
};

// Whether `copies` of `keys` keys and values are too large to stay in L2 from one block of rows to the next. If they
// stay, prefetching only costs time (head dim 64, N 512).
inline bool beyond_cache(const Reading& reading, int64_t keys, int64_t copies) {
  constexpr int64_t kCache = (768 << 10) / sizeof(float);
  return copies * keys * (reading.key_dim + reading.value_dim) > kCache;
}

// Packs `count` <= kPanel rows of a strided tensor into a panel; missing lanes are zero. `zeros` holds `dim` zeros.
HWY_NOINLINE void pack_rows(const float* data, int64_t stride, int64_t count, int64_t dim, const float* zeros,
                            float* panel) {
  const float* rows[kPanel];
  for (int64_t lane = 0; lane < kPanel; ++lane) rows[lane] = lane < count ? data + lane * stride : zeros;
  pack_panel(rows, used_lanes(count), dim, panel);
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
