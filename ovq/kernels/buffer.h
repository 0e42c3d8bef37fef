// 64-byte aligned, uninitialised memory. All that the kernels allocate in proportion to their inputs goes through here,
// so that it can be counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace ovq::kernels {

struct MemoryUse {
  int64_t current = 0;  // bytes held by the kernels' buffers now (states included)
  int64_t peak = 0;     // the most since reset_peak_memory()
};
MemoryUse memory_use();
void reset_peak_memory();

namespace detail {
void* allocate(size_t bytes);  // throws std::bad_alloc
void deallocate(void* pointer, size_t bytes) noexcept;
}  // namespace detail

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : data_(static_cast<T*>(detail::allocate(size * sizeof(T)))), size_(size) {}
  static Buffer zeros(int64_t size) {
    Buffer buffer(size);
    if (size > 0) std::memset(buffer.data_, 0, size * sizeof(T));
    return buffer;
  }

  Buffer(const Buffer& other) : Buffer(other.size_) {
    if (size_ > 0) std::memcpy(data_, other.data_, size_ * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { detail::deallocate(data_, size_ * sizeof(T)); }

  // At least `size` elements; what was there is lost when it grows.
  T* ensure(int64_t size) {
    if (size > size_) *this = Buffer(size);
    return data_;
  }

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t nbytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace ovq::kernels
