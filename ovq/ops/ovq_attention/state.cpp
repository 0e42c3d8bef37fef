#include "ovq/ops/ovq_attention/state.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "ovq/core/small_rows.h"
#include "ovq/ops/attention/kernel.h"

namespace ovq::kernels {
namespace {

// Copies the rows [0, count) of each of `heads` blocks of `stride`-wide rows to blocks of another capacity.
template <class T>
void copy_blocks(const T* old, T* grown, int64_t heads, int64_t old_rows, int64_t new_rows, int64_t count,
                 int64_t stride) {
  for (int64_t head = 0; head < heads && count > 0; ++head) {
    std::memcpy(grown + head * new_rows * stride, old + head * old_rows * stride, count * stride * sizeof(T));
  }
}

template <class T>
Buffer<T> regrow(const Buffer<T>& old, int64_t heads, int64_t old_rows, int64_t new_rows, int64_t count, int64_t stride,
                 Lifetime lifetime) {
  Buffer<T> grown(heads * new_rows * stride, lifetime);
  copy_blocks(old.data(), grown.data(), heads, old_rows, new_rows, count, stride);
  return grown;
}

// Converts a head's rows between the two storage types: rounds or widens `centroids` elements, then copies `pending`
// elements of pending tokens, which are always floats.
void convert(const float* from, const Bfloat16* narrow_from, float* to, Bfloat16* narrow_to, bool narrow,
             int64_t centroids, int64_t pending) {
  if (narrow) {
    detail::narrow_row(from, centroids, narrow_to);
    detail::copy_row(from + centroids, pending, to);
  } else {
    detail::widen_row(narrow_from, centroids, to);
    detail::copy_row(from, pending, to + centroids);
  }
}

}  // namespace

OvqState::OvqState(const OvqShape& shape, const OvqOptions& options, StateDtype dtype, Lifetime lifetime)
    : shape_(shape), options_(options), dtype_(dtype), lifetime_(lifetime) {
  constexpr const char* op = "OvqState";
  check(shape.batch >= 0, op, "batch is ", shape.batch, "; must be at least 0");
  check(shape.kv_heads >= 1, op, "kv_heads is ", shape.kv_heads, "; must be at least 1");
  check(shape.key_dim >= 1, op, "key_dim is ", shape.key_dim, "; must be at least 1");
  check(shape.value_dim >= 1, op, "value_dim is ", shape.value_dim, "; must be at least 1");
  check_options(op, options, shape.key_dim);
}

int64_t OvqState::nbytes() const {
  return keys_.nbytes() + values_.nbytes() + narrow_.nbytes() + counts_.nbytes() + weights_.nbytes() +
         shrinkage_.nbytes() + log_counts_.nbytes() + rotated_.nbytes() + best_similarity_.nbytes() +
         best_centroid_.nbytes();
}

int64_t OvqState::nbytes_after(const OvqShape& shape, const OvqOptions& options, int64_t tokens, StateDtype dtype) {
  const int64_t limit = (options.rope ? 2 : 1) * options.chunk, needed = std::min(limit, tokens);
  const int64_t size = size_after(options, 0, 0, tokens);
  const int64_t rows = size + needed, window = std::min(limit, needed + needed / 2);
  const int64_t key_stride = detail::padded(shape.key_dim), value_stride = detail::padded(shape.value_dim);
  constexpr int64_t kFloat = sizeof(float);
  const int64_t count = options.weighted ? kFloat : static_cast<int64_t>(sizeof(int64_t));
  const int64_t elements = key_stride + value_stride;
  const int64_t of_tokens = dtype == StateDtype::bfloat16
                                ? elements * (size * static_cast<int64_t>(sizeof(Bfloat16)) + window * kFloat)
                                : elements * rows * kFloat;
  const int64_t of_rows = of_tokens + rows * (kFloat + count + (options.value_norms ? kFloat : 0));
  const int64_t of_window =
      window * (kFloat + static_cast<int64_t>(sizeof(int32_t)) + (options.rope ? key_stride * kFloat : 0));
  return shape.batch * shape.kv_heads * (of_rows + of_window);
}

Bfloat16* OvqState::first_narrow_value() const {
  return narrow_.data() + shape_.batch * shape_.kv_heads * centroids_ * detail::padded(shape_.key_dim);
}

template <class T>
View<const T> OvqState::rows(const T* data, int64_t capacity, int64_t dim, int64_t first, int64_t count) const {
  const int64_t stride = detail::padded(dim);
  return {data == nullptr ? nullptr : data + first * stride,
          shape_.batch,
          count,
          shape_.kv_heads,
          dim,
          shape_.kv_heads * capacity * stride,
          stride,
          capacity * stride};
}

View<const float> OvqState::pending_rows(const Buffer<float>& data, int64_t dim) const {
  return rows<float>(data.data(), narrow() ? window_ : capacity_, dim, narrow() ? 0 : size_, pending());
}

View<const float> OvqState::numbers(const Buffer<float>& data, int64_t first, int64_t count) const {
  return {data.data() == nullptr ? nullptr : data.data() + first,
          shape_.batch,
          count,
          shape_.kv_heads,
          1,
          shape_.kv_heads * capacity_,
          1,
          capacity_};
}

View<const float> OvqState::keys() const {
  check(!narrow(), "OvqState::keys", "the centroids are stored as bfloat16; must be float32");
  return rows<float>(keys_.data(), capacity_, shape_.key_dim, 0, size_);
}
View<const float> OvqState::values() const {
  check(!narrow(), "OvqState::values", "the centroids are stored as bfloat16; must be float32");
  return rows<float>(values_.data(), capacity_, shape_.value_dim, 0, size_);
}
View<const Bfloat16> OvqState::narrow_keys() const {
  check(narrow(), "OvqState::narrow_keys", "the centroids are stored as float32; must be bfloat16");
  return rows<Bfloat16>(narrow_.data(), centroids_, shape_.key_dim, 0, size_);
}
View<const Bfloat16> OvqState::narrow_values() const {
  check(narrow(), "OvqState::narrow_values", "the centroids are stored as float32; must be bfloat16");
  return rows<Bfloat16>(first_narrow_value(), centroids_, shape_.value_dim, 0, size_);
}
View<const float> OvqState::pending_keys() const { return pending_rows(keys_, shape_.key_dim); }
View<const float> OvqState::pending_values() const { return pending_rows(values_, shape_.value_dim); }

View<const float> OvqState::real_counts() const { return numbers(weights_, 0, size_); }
View<const float> OvqState::pending_weights() const { return numbers(weights_, size_, pending()); }
View<const float> OvqState::shrinkage() const { return numbers(shrinkage_, 0, size_); }

std::span<const int64_t> OvqState::counts(int64_t batch, int64_t head) const {
  if (options_.weighted) return {};
  return {counts_.data() + (batch * shape_.kv_heads + head) * capacity_, static_cast<size_t>(size_)};
}

void OvqState::set_centroids(int64_t centroids) {
  check(centroids >= 1, "OvqState", "centroids is ", centroids, "; must be at least 1");
  options_.centroids = centroids;
}

void OvqState::resize(int64_t centroids, int64_t rows, int64_t window) {
  const int64_t heads = shape_.batch * shape_.kv_heads;
  const int64_t key_stride = detail::padded(shape_.key_dim), value_stride = detail::padded(shape_.value_dim);
  const int64_t used = size_ + pending();
  // Allocates everything before any change, so that running out of memory leaves the state intact.
  Buffer<float> keys, values;
  Buffer<Bfloat16> narrow_rows;
  if (narrow()) {
    keys = regrow(keys_, heads, window_, window, pending(), key_stride, lifetime_);
    values = regrow(values_, heads, window_, window, pending(), value_stride, lifetime_);
    // One buffer, because half of it would often be too small for huge pages; without them decode loses a quarter.
    narrow_rows = Buffer<Bfloat16>(heads * centroids * (key_stride + value_stride), lifetime_);
    copy_blocks(narrow_.data(), narrow_rows.data(), heads, centroids_, centroids, size_, key_stride);
    copy_blocks(first_narrow_value(), narrow_rows.data() + heads * centroids * key_stride, heads, centroids_, centroids,
                size_, value_stride);
  } else {
    keys = regrow(keys_, heads, capacity_, rows, used, key_stride, lifetime_);
    values = regrow(values_, heads, capacity_, rows, used, value_stride, lifetime_);
  }
  Buffer<int64_t> counts;
  Buffer<float> weights, shrinkage;
  if (options_.value_norms) shrinkage = regrow(shrinkage_, heads, capacity_, rows, size_, 1, lifetime_);
  if (options_.weighted) {
    weights = regrow(weights_, heads, capacity_, rows, used, 1, lifetime_);
  } else {
    counts = regrow(counts_, heads, capacity_, rows, size_, 1, lifetime_);
  }
  auto log_counts = regrow(log_counts_, heads, capacity_, rows, options_.weighted ? used : size_, 1, lifetime_);
  const int64_t searched = std::min(window_, options_.chunk);
  auto best_similarity = regrow(best_similarity_, heads, window_, window, searched, 1, lifetime_);
  auto best_centroid = regrow(best_centroid_, heads, window_, window, searched, 1, lifetime_);
  Buffer<float> rotated;
  if (options_.rope) rotated = regrow(rotated_, heads, window_, window, pending(), key_stride, lifetime_);
  keys_ = std::move(keys);
  values_ = std::move(values);
  narrow_ = std::move(narrow_rows);
  counts_ = std::move(counts);
  weights_ = std::move(weights);
  shrinkage_ = std::move(shrinkage);
  log_counts_ = std::move(log_counts);
  best_similarity_ = std::move(best_similarity);
  best_centroid_ = std::move(best_centroid);
  rotated_ = std::move(rotated);
  capacity_ = rows;
  window_ = window;
  centroids_ = centroids;
}

void OvqState::reserve(int64_t tokens) {
  const int64_t end = position_ + tokens;
  const int64_t window = std::min((options_.rope ? 2 : 1) * options_.chunk, end);
  const int64_t centroids = size_after(options_, size_, position_, tokens), rows = centroids + window;
  if (rows <= capacity_ && window <= window_ && centroids <= centroids_) return;
  // Leaves room for some growth: decoding token by token must not copy the dictionary at every chunk.
  const int64_t slack = capacity_ == 0 ? 0 : capacity_ / 8;
  resize(std::max(centroids_, centroids + slack), std::max(capacity_, rows + slack),
         std::max(window_, std::min((options_.rope ? 2 : 1) * options_.chunk, window + window / 2)));
}

OvqHead OvqState::head(int64_t batch, int64_t head) const {
  const int64_t index = batch * shape_.kv_heads + head;
  OvqHead result;
  result.key_stride = detail::padded(shape_.key_dim);
  result.value_stride = detail::padded(shape_.value_dim);
  result.narrow = narrow();
  const int64_t capacity = narrow() ? window_ : capacity_;
  result.keys = keys_.data() + index * capacity * result.key_stride;
  result.values = values_.data() + index * capacity * result.value_stride;
  if (narrow()) {
    result.narrow_keys = narrow_.data() + index * centroids_ * result.key_stride;
    result.narrow_values = first_narrow_value() + index * centroids_ * result.value_stride;
  }
  if (options_.weighted) {
    result.weights = weights_.data() + index * capacity_;
  } else {
    result.counts = counts_.data() + index * capacity_;
  }
  if (options_.value_norms) result.shrinkage = shrinkage_.data() + index * capacity_;
  result.log_counts = log_counts_.data() + index * capacity_;
  result.best_similarity = best_similarity_.data() + index * window_;
  result.best_centroid = best_centroid_.data() + index * window_;
  if (options_.rope) result.rotated = rotated_.data() + index * window_ * result.key_stride;
  return result;
}

void OvqState::advance(int64_t tokens) {
  size_ = size_after(options_, size_, position_, tokens);
  position_ += tokens;
}

OvqState OvqState::copy_head(int64_t batch, int64_t head_index) const {
  assert(!narrow());
  OvqState copy({1, 1, shape_.key_dim, shape_.value_dim}, options_, dtype_, Lifetime::scratch);
  copy.position_ = position_;
  copy.size_ = size_;
  if (capacity_ == 0) return copy;
  const OvqHead from = head(batch, head_index);
  const auto part = [](const auto* data, int64_t count) {
    Buffer<std::remove_cvref_t<decltype(*data)>> buffer(count, Lifetime::scratch);
    std::memcpy(buffer.data(), data, buffer.nbytes());
    return buffer;
  };
  copy.keys_ = part(from.keys, capacity_ * from.key_stride);
  copy.values_ = part(from.values, capacity_ * from.value_stride);
  if (options_.weighted) {
    copy.weights_ = part(from.weights, capacity_);
  } else {
    copy.counts_ = part(from.counts, capacity_);
  }
  if (options_.value_norms) copy.shrinkage_ = part(from.shrinkage, capacity_);
  copy.log_counts_ = part(from.log_counts, capacity_);
  copy.best_similarity_ = part(from.best_similarity, window_);
  copy.best_centroid_ = part(from.best_centroid, window_);
  if (options_.rope) copy.rotated_ = part(from.rotated, window_ * from.key_stride);
  copy.capacity_ = capacity_;
  copy.window_ = window_;
  copy.centroids_ = centroids_;
  return copy;
}

OvqState OvqState::to(StateDtype dtype) const {
  if (dtype == dtype_) return *this;
  OvqState result(shape_, options_, dtype, lifetime_);
  if (capacity_ > 0) result.resize(centroids_, capacity_, window_);
  result.position_ = position_;
  result.size_ = size_;
  for (int64_t i = 0; i < shape_.batch * shape_.kv_heads; ++i) {
    const OvqHead from = head(i / shape_.kv_heads, i % shape_.kv_heads);
    const OvqHead to = result.head(i / shape_.kv_heads, i % shape_.kv_heads);
    convert(from.keys, from.narrow_keys, to.keys, to.narrow_keys, to.narrow, size_ * from.key_stride,
            pending() * from.key_stride);
    convert(from.values, from.narrow_values, to.values, to.narrow_values, to.narrow, size_ * from.value_stride,
            pending() * from.value_stride);
  }
  result.counts_ = counts_;
  result.weights_ = weights_;
  result.shrinkage_ = shrinkage_;
  result.log_counts_ = log_counts_;
  result.rotated_ = rotated_;
  result.best_similarity_ = best_similarity_;
  result.best_centroid_ = best_centroid_;
  return result;
}

void OvqState::reset() { position_ = size_ = 0; }

}  // namespace ovq::kernels
