#include "ovq/ops/attention/backward_block.h"

#include <algorithm>

#include "ovq/core/parallel.h"

namespace ovq::kernels::detail {

void backward_block(const ReadKernels& kernels, const BackwardBlock& block, std::span<Workspace> team) {
  Workspace& shared = team.front();
  kernels.backward_pack(block, shared);
  const int64_t tiles = block.tiles();
  const int64_t panel_floats = round_up(block.rows, kernels.panel) * block.reading->key_dim;
  if (team.size() == 1) {
    float* d_q = shared.d_q.ensure(panel_floats);
    for (int64_t tile = 0; tile < tiles; ++tile) kernels.backward_tile(block, shared, tile, shared, d_q, tile > 0);
    kernels.backward_finish(block, shared, d_q);
    return;
  }
  // Each tile of a wave has its own d_q; they are added in tile order, as on one thread.
  const int64_t wave = std::min<int64_t>(tiles, 4 * static_cast<int64_t>(team.size()));
  float* d_q = shared.d_q.ensure((wave + 1) * panel_floats);
  float* partial = d_q + panel_floats;
  for (int64_t first = 0; first < tiles; first += wave) {
    const int64_t count = std::min(wave, tiles - first);
    parallel_for(count, static_cast<int>(team.size()), [&](int64_t i, int thread) {
      kernels.backward_tile(block, shared, first + i, team[thread], partial + i * panel_floats, false);
    });
    for (int64_t i = 0; i < count; ++i) {
      const float* from = partial + i * panel_floats;
      if (first + i == 0) {
        std::copy_n(from, panel_floats, d_q);
      } else {
        for (int64_t j = 0; j < panel_floats; ++j) d_q[j] += from[j];
      }
    }
  }
  kernels.backward_finish(block, shared, d_q);
}

}  // namespace ovq::kernels::detail
