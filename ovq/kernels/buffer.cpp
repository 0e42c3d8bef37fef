#include "ovq/kernels/buffer.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace ovq::kernels {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<int64_t> current_bytes{0};
std::atomic<int64_t> peak_bytes{0};

}  // namespace

MemoryUse memory_use() { return {current_bytes.load(), peak_bytes.load()}; }

void reset_peak_memory() { peak_bytes = current_bytes.load(); }

namespace detail {

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - kHugePage) throw std::bad_alloc();
  // Large buffers start on a huge page: fewer page faults, and fewer misses of the TLB, which a virtual machine pays
  // for twice.
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  void* pointer = nullptr;
  if (posix_memalign(&pointer, alignment, bytes) != 0) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(pointer, bytes, MADV_HUGEPAGE);
  const int64_t now = current_bytes += static_cast<int64_t>(bytes);
  int64_t peak = peak_bytes.load();
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
  return pointer;
}

void deallocate(void* pointer, size_t bytes) noexcept {
  if (pointer == nullptr) return;
  std::free(pointer);
  current_bytes -= static_cast<int64_t>(bytes);
}

}  // namespace detail
}  // namespace ovq::kernels
