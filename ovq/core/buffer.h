// 64-byte aligned, uninitialised memory. All kernel allocations that grow with the inputs go through here, so that they
// can be counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace ovq::kernels {

struct MemoryUse {
  int64_t current = 0;  // bytes held by the kernels' buffers now (states included)
  int64_t peak = 0;     // the maximum since reset_peak_memory()
  int64_t kept = 0;     // freed scratch memory kept for the next call; not part of `current`
};
MemoryUse memory_use();
void reset_peak_memory();

enum class Lifetime {
  owned,    // as long as its owner
  scratch,  // one call; large ones lie on huge pages and are kept for the next call
};

namespace detail {
void* allocate(size_t bytes, Lifetime lifetime);  // throws std::bad_alloc
void deallocate(void* pointer, size_t bytes, Lifetime lifetime) noexcept;
}  // namespace detail

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(Lifetime lifetime) : lifetime_(lifetime) {}
  explicit Buffer(int64_t size, Lifetime lifetime = Lifetime::owned)
      : data_(static_cast<T*>(detail::allocate(size * sizeof(T), lifetime))), size_(size), lifetime_(lifetime) {}
  static Buffer zeros(int64_t size) {
    Buffer buffer(size);
    if (size > 0) std::memset(buffer.data_, 0, size * sizeof(T));
    return buffer;
  }

  Buffer(const Buffer& other) : Buffer(other.size_, other.lifetime_) {
    if (size_ > 0) std::memcpy(data_, other.data_, size_ * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), lifetime_(other.lifetime_) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(lifetime_, other.lifetime_);
    return *this;
  }
  ~Buffer() { detail::deallocate(data_, size_ * sizeof(T), lifetime_); }

  // At least `size` elements; growing loses the content.
  T* ensure(int64_t size) {
    if (size > size_) {
      *this = Buffer(lifetime_);
      *this = Buffer(size, lifetime_);
    }
    return data_;
  }

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t nbytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
  Lifetime lifetime_ = Lifetime::owned;
};

}  // namespace ovq::kernels
