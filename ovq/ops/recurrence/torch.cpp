#include "ovq/ops/recurrence/torch.h"

#include "ovq/ops/recurrence/kernel.h"
#include "ovq/ops/torch/output_memory.h"

namespace ovq::ops {

at::Tensor saved_memory(int64_t floats, const std::vector<int64_t>& borders) {
  using kernels::recurrence::kChunk;
  if (borders.empty()) return empty_output({floats});
  int64_t used = 0;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    used += kernels::recurrence::chunks_of(borders[i + 1] - borders[i]) + 1;
  }
  const int64_t most = borders.back() / kChunk + 2 * (static_cast<int64_t>(borders.size()) - 1);
  return empty_output({floats / used * most});
}

}  // namespace ovq::ops
