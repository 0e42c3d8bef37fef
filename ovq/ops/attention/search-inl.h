// The search for the nearest centroid of a panel of keys, tile by tile, and the ranking of a chunk's tokens.
#if defined(OVQ_OPS_ATTENTION_SEARCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_ATTENTION_SEARCH_INL_H_
#undef OVQ_OPS_ATTENTION_SEARCH_INL_H_
#else
#define OVQ_OPS_ATTENTION_SEARCH_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "ovq/core/matmul-inl.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/attention/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The larger of the two; `current` if x is NaN.
HWY_INLINE PanelVector larger(PanelVector x, PanelVector current) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(x, current);  // returns the second operand if one is NaN
#else
  return hn::IfThenElse(hn::Gt(x, current), x, current);
#endif
}

// best <- max(best, keys . k), strictly greater, so that the first of equal keys stays and NaN never wins. Once some
// keys have been seen, most runs improve no lane. The key at `tile` is the centroid `first_centroid`.
template <class S>
HWY_NOINLINE void search_tile(const float* panel, const KeyRun& keys, int64_t tile, int64_t count, int64_t dim,
                              int64_t first_centroid, float* best_similarity, int32_t* best_centroid, Ahead& ahead) {
  const PanelTag d;
  const hn::RebindToSigned<PanelTag> di;
  PanelVector best[kVectors];
  hn::Vec<decltype(di)> index[kVectors];
  for (int x = S::kBegin; x < S::kEnd; ++x) {
    best[x] = hn::Load(d, best_similarity + x * kLanes);
    index[x] = hn::Load(di, best_centroid + x * kLanes);
  }
  const float* first = keys.keys + tile * keys.key_stride;
  const int64_t stride = keys.key_stride;
  for_row_runs(count, [=, &best, &index, &ahead](auto run, int64_t key) HWY_ATTR {
    constexpr int R = run;
    ahead.fetch();
    Tile<R> acc;
    set_zero<S>(acc);
    multiply_add<S>(panel, first + key * stride, stride, 1, dim, acc);
    PanelVector run_max[kVectors];
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) {
      run_max[x] = best[x];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) run_max[x] = larger(acc[r][x], run_max[x]);
    }
    // A single branch for all vectors: in short rows mispredictions dominate the time.
    auto any = hn::Gt(run_max[S::kBegin], best[S::kBegin]);
#pragma GCC unroll 8
    for (int x = S::kBegin + 1; x < S::kEnd; ++x) any = hn::Or(any, hn::Gt(run_max[x], best[x]));
    if (hn::AllFalse(d, any)) return;
#pragma GCC unroll 8
    for (int x = S::kBegin; x < S::kEnd; ++x) {
      PanelVector run_best = best[x];
      auto run_index = index[x];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const auto centroid = hn::Set(di, static_cast<int32_t>(first_centroid + key + r));
        const auto better = hn::Gt(acc[r][x], run_best);
        run_best = hn::IfThenElse(better, acc[r][x], run_best);
        run_index = hn::IfThenElse(hn::RebindMask(di, better), centroid, run_index);
      }
      best[x] = run_best;
      index[x] = run_index;
    }
  });
  for (int x = S::kBegin; x < S::kEnd; ++x) {
    hn::Store(best[x], d, best_similarity + x * kLanes);
    hn::Store(index[x], di, best_centroid + x * kLanes);
  }
}

// ranks[i] <- the number of elements that sort before numbers[i]: smaller ones, and equal ones before it. Compares all
// pairs without branches: with chunks of 32, a selection with mispredicted branches took a tenth of the forward of a
// head of 16. Long chunks spend far more on their own window, which is all pairs too.
HWY_NOINLINE void rank_numbers(const int64_t* HWY_RESTRICT numbers, int64_t count, int64_t* HWY_RESTRICT ranks) {
  const hn::CappedTag<int64_t, kPadding> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t first = 0; first < count; first += lanes) {
    const auto own = hn::LoadU(d, numbers + first);
    const auto position = hn::Iota(d, first);
    const int64_t end = first + lanes < count ? first + lanes : count;
    auto rank = hn::Set(d, first);  // comparison masks are -1 where true
    for (int64_t i = 0; i < first; ++i) {
      rank = hn::Add(rank, hn::VecFromMask(d, hn::Gt(hn::Set(d, numbers[i]), own)));
    }
    for (int64_t i = first; i < end; ++i) {
      const auto other = hn::Set(d, numbers[i]);
      const auto in_front = hn::And(hn::Eq(other, own), hn::Lt(hn::Set(d, i), position));
      rank = hn::Sub(rank, hn::VecFromMask(d, hn::Or(hn::Lt(other, own), in_front)));
    }
    for (int64_t i = end; i < count; ++i) {
      rank = hn::Sub(rank, hn::VecFromMask(d, hn::Lt(hn::Set(d, numbers[i]), own)));
    }
    hn::StoreU(rank, d, ranks + first);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#endif
