#include "ovq/ops/torch/output_memory.h"

#include <sys/mman.h>

#include <cstdint>

namespace ovq::ops {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

at::Tensor empty_weights(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  if (bytes < kHugePage) return at::empty(sizes, dtype);
  const size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return at::empty(sizes, dtype);
  const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
  void* const data = reinterpret_cast<void*>(first);
  madvise(data, mapped - kHugePage, MADV_HUGEPAGE);
  return at::from_blob(
      data, sizes, [=](void*) { munmap(memory, mapped); }, at::TensorOptions().dtype(dtype));
}

at::Tensor empty_output(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor output = at::empty(sizes, dtype);
  // The whole huge pages inside; advice only, so a refusal does not matter.
  const auto begin = reinterpret_cast<uintptr_t>(output.data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + output.nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return output;
}

}  // namespace ovq::ops
