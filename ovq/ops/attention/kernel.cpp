#include "ovq/ops/attention/kernel.h"
#include "ovq/core/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ovq/ops/attention/kernel.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "ovq/ops/attention/backward-inl.h"
#include "ovq/ops/attention/few_rows-inl.h"
#include "ovq/ops/attention/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

void forward_entry(const ForwardBlock& block, Workspace& workspace) { forward_block(block, workspace); }

void forward_few_entry(std::span<const ForwardBlock> heads, Workspace& workspace) { forward_few(heads, workspace); }

void backward_pack_entry(const BackwardBlock& block, Workspace& shared) { backward_pack(block, shared); }

void backward_tile_entry(const BackwardBlock& block, const Workspace& shared, int64_t tile, Workspace& own, float* d_q,
                         bool add) {
  backward_tile(block, shared, tile, own, d_q, add);
}

void backward_finish_entry(const BackwardBlock& block, const Workspace& shared, const float* d_q) {
  backward_finish(block, shared, d_q);
}

void similarities_entry(const float* panels, int64_t count, int64_t dim, const float* query, float* similarities) {
  const PanelTag d;
  for (int64_t first = 0; first < count; first += kPanel) {
    Tile<1> acc;
    set_zero(acc);
    multiply_add(panels + first * dim, query, 0, 1, dim, acc);
    alignas(64) float lanes[kPanel];
    for (int x = 0; x < kVectors; ++x) hn::Store(acc[0][x], d, lanes + x * kLanes);
    std::memcpy(similarities + first, lanes, std::min(kPanel, count - first) * sizeof(float));
  }
}

void pack_keys_entry(const float* keys, int64_t stride, int64_t count, int64_t dim, float* panels) {
  for (int64_t first = 0; first < count; first += kPanel) {
    const float* rows[kPanel];
    for (int64_t lane = 0; lane < kPanel; ++lane) rows[lane] = keys + std::min(first + lane, count - 1) * stride;
    pack_panel(rows, kPanel, dim, panels + first * dim);
  }
}

void rank_entry(const int64_t* numbers, int64_t count, int64_t* ranks) { rank_numbers(numbers, count, ranks); }

const ReadKernels* kernels_of_target() {
  static const ReadKernels kernels = {
      .isa = hwy::TargetName(HWY_TARGET),
      .panel = kPanel,
      .forward = forward_entry,
      .forward_few = forward_few_entry,
      .backward_pack = backward_pack_entry,
      .backward_tile = backward_tile_entry,
      .backward_finish = backward_finish_entry,
      .similarities = similarities_entry,
      .pack_keys = pack_keys_entry,
      .rank = rank_entry,
  };
  return &kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "ovq/core/dispatch.h"

namespace ovq::kernels::detail {

HWY_EXPORT(kernels_of_target);

const ReadKernels& read_kernels() {
  static const TargetTables<ReadKernels> tables([] { return HWY_DYNAMIC_DISPATCH(kernels_of_target)(); });
  return tables.selected();
}

}  // namespace ovq::kernels::detail
#endif
