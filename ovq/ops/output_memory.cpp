#include "ovq/ops/output_memory.h"

#include <sys/mman.h>

#include <cstdint>

namespace ovq::ops {

at::Tensor empty_output(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const at::Tensor output = at::empty(sizes, dtype);
  // The whole huge pages inside; advice only, so a refusal does not matter.
  const auto begin = reinterpret_cast<uintptr_t>(output.data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + output.nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return output;
}

}  // namespace ovq::ops
