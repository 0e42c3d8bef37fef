#include "ovq/core/buffer.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <new>

namespace ovq::kernels {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargeScratch = kHugePage / 4;
constexpr size_t kMostKept = size_t{256} << 20;

std::atomic<int64_t> current_bytes{0};
std::atomic<int64_t> peak_bytes{0};

size_t whole_huge_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Huge pages cause fewer TLB misses, which cost twice as much in a virtual machine. But the system clears them when
// they are first touched, which would cost more than it saves if every call started with new ones.
void* allocate_huge(size_t bytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, kHugePage, bytes) != 0) throw std::bad_alloc();
  madvise(pointer, bytes, MADV_HUGEPAGE);
  return pointer;
}

// Freed scratch memory by size, at most kMostKept in all.
class Pool {
 public:
  void* take(size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      // A block of up to twice the size is good enough.
      if (const auto at = blocks_.lower_bound(bytes); at != blocks_.end() && at->first <= 2 * bytes) {
        void* pointer = at->second;
        sizes_[pointer] = at->first;
        bytes_ -= at->first;
        blocks_.erase(at);
        return pointer;
      }
    }
    void* pointer = allocate_huge(bytes);
    const std::lock_guard lock(mutex_);
    sizes_[pointer] = bytes;
    return pointer;
  }

  void give_back(void* pointer) noexcept {
    {
      const std::lock_guard lock(mutex_);
      const auto at = sizes_.find(pointer);
      const size_t bytes = at->second;
      sizes_.erase(at);
      if (bytes_ + bytes <= kMostKept) {
        try {
          blocks_.emplace(bytes, pointer);
          bytes_ += bytes;
          return;
        } catch (const std::bad_alloc&) {  // the block is freed instead
        }
      }
    }
    std::free(pointer);
  }

  size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, void*> blocks_;
  std::map<void*, size_t> sizes_;  // of the blocks in use
  size_t bytes_ = 0;
};

// Never destroyed: buffers in static objects may outlive it.
Pool& pool() {
  static Pool& pool = *new Pool;
  return pool;
}

bool is_pooled(size_t bytes, Lifetime lifetime) { return lifetime == Lifetime::scratch && bytes >= kLargeScratch; }

}  // namespace

MemoryUse memory_use() { return {current_bytes.load(), peak_bytes.load(), static_cast<int64_t>(pool().bytes())}; }

void reset_peak_memory() { peak_bytes = current_bytes.load(); }

namespace detail {

void* allocate(size_t bytes, Lifetime lifetime) {
  if (bytes == 0) return nullptr;
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - kHugePage) throw std::bad_alloc();
  void* pointer = nullptr;
  if (is_pooled(bytes, lifetime)) {
    pointer = pool().take(whole_huge_pages(bytes));
  } else if (bytes >= kHugePage) {
    pointer = allocate_huge(bytes);
  } else if (posix_memalign(&pointer, kAlignment, bytes) != 0) {
    throw std::bad_alloc();
  }
  const int64_t now = current_bytes += static_cast<int64_t>(bytes);
  int64_t peak = peak_bytes.load();
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
  return pointer;
}

void deallocate(void* pointer, size_t bytes, Lifetime lifetime) noexcept {
  if (pointer == nullptr) return;
  if (is_pooled(bytes, lifetime)) {
    pool().give_back(pointer);
  } else {
    std::free(pointer);
  }
  current_bytes -= static_cast<int64_t>(bytes);
}

}  // namespace detail
}  // namespace ovq::kernels
