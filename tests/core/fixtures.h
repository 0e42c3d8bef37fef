// Inputs and outputs for the tests: random, strided, fenced. Also a fixture that runs a test on one instruction set.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/core/isa.h"
#include "ovq/core/view.h"

namespace ovq::kernels::test {

inline constexpr int64_t kTimes[] = {0, 1, 2, 7, 8, 9, 15, 17, 31, 33, 127, 128, 129, 300};
inline constexpr int64_t kShortTimes[] = {0, 1, 2, 7, 8, 9, 15, 17, 31, 33};
inline constexpr int64_t kDims[] = {1, 8, 15, 16, 60, 64, 128};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float normal() { return normal_(engine_); }
  int64_t below(int64_t limit) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit)); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

struct Shape {
  int64_t batch = 1, time = 0, heads = 1, dim = 1;
  int64_t size() const { return batch * time * heads * dim; }
};

// Memory that begins with a cache line, like a tensor's.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* data, size_t) { ::operator delete(data, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
  static constexpr std::align_val_t kLine{64};
};
using AlignedFloats = std::vector<float, LineAllocator<float>>;

enum class Layout {
  dense,       // [B, T, H, D]
  padded,      // [B, T, H, D] with gaps after each head, token and sequence, at an odd address
  transposed,  // [B, H, T, D] with gaps
};
inline constexpr Layout kLayouts[] = {Layout::dense, Layout::padded, Layout::transposed};

template <class T>
std::vector<float> dense(View<T> view) {
  std::vector<float> values;
  for (int64_t b = 0; b < view.batch; ++b) {
    for (int64_t t = 0; t < view.time; ++t) {
      for (int64_t h = 0; h < view.heads; ++h) {
        values.insert(values.end(), view.row(b, t, h), view.row(b, t, h) + view.dim);
      }
    }
  }
  return values;
}

// Elements start as NaN. The memory between and around them holds another NaN, which must never change. With
// AddressSanitizer there is no memory around them, so that it also detects reads out of bounds.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Shape shape, Layout layout = Layout::dense) {
    const int64_t gap = layout == Layout::dense ? 0 : 3;
    const auto [batch, time, heads, dim] = shape;
    view_ = {nullptr, batch, time, heads, dim, 0, 0, 0};
    if (layout == Layout::transposed) {
      view_.time_stride = dim + gap;
      view_.head_stride = time * view_.time_stride + gap;
      view_.batch_stride = heads * view_.head_stride + gap;
    } else {
      view_.head_stride = dim + gap;
      view_.time_stride = heads * view_.head_stride + gap;
      view_.batch_stride = time * view_.time_stride + gap;
    }
    first_ = layout == Layout::dense ? kFence : kFence + 1;
    storage_.assign(first_ + batch * view_.batch_stride + kFence, std::bit_cast<float>(kFenceBits));
    fill(std::bit_cast<float>(kUnsetBits));
  }

  View<float> view() const {
    View<float> view = view_;
    view.data = const_cast<float*>(storage_.data()) + first_;
    return view;
  }
  // The tokens `first` ... `first + count - 1`.
  View<float> slice(int64_t first, int64_t count) const {
    View<float> part = view();
    part.data += first * part.time_stride;
    part.time = count;
    return part;
  }
  float* row(int64_t b, int64_t t, int64_t h) const { return view().row(b, t, h); }
  std::vector<float> values() const { return dense(view()); }

  void fill(float value) {
    each_row([&](float* row) { std::fill(row, row + view_.dim, value); });
  }
  void fill(Random& random) {
    each_row([&](float* row) { std::generate(row, row + view_.dim, [&] { return random.normal(); }); });
  }
  void normalize_rows() {
    each_row([&](float* row) {
      double sum = 0;
      for (int64_t i = 0; i < view_.dim; ++i) sum += static_cast<double>(row[i]) * row[i];
      for (int64_t i = 0; i < view_.dim; ++i) row[i] = static_cast<float>(row[i] / std::sqrt(sum));
    });
  }
  template <class Body>
  void each_row(Body&& body) {
    for (int64_t b = 0; b < view_.batch; ++b) {
      for (int64_t t = 0; t < view_.time; ++t) {
        for (int64_t h = 0; h < view_.heads; ++h) body(row(b, t, h));
      }
    }
  }

  testing::AssertionResult fences_intact() const {
    Tensor copy = *this;
    copy.fill(std::bit_cast<float>(kFenceBits));
    for (size_t i = 0; i < copy.storage_.size(); ++i) {
      if (std::bit_cast<uint32_t>(copy.storage_[i]) != kFenceBits) {
        return testing::AssertionFailure() << "written out of bounds at " << static_cast<int64_t>(i) - first_;
      }
    }
    return testing::AssertionSuccess();
  }

 private:
#ifdef OVQ_KERNELS_SEE_ADDRESSES
  static constexpr int64_t kFence = 0;
#else
  static constexpr int64_t kFence = 32;
#endif
  static constexpr uint32_t kFenceBits = 0x7fc0fefe, kUnsetBits = 0x7fc00bad;

  View<float> view_;
  int64_t first_ = 0;
  AlignedFloats storage_;
};

inline Tensor random_tensor(Shape shape, Layout layout, Random& random) {
  Tensor tensor(shape, layout);
  tensor.fill(random);
  return tensor;
}

inline Tensor unit_tensor(Shape shape, Layout layout, Random& random) {
  Tensor tensor = random_tensor(shape, layout, random);
  tensor.normalize_rows();
  return tensor;
}

// Runs on the instruction set given by the test's parameter.
class OnIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select_isa(GetParam()); }
  void TearDown() override { select_isa(""); }
};

#define OVQ_ON_EVERY_ISA(Fixture)                                             \
  INSTANTIATE_TEST_SUITE_P(Isa, Fixture, testing::ValuesIn(available_isas()), \
                           [](const auto& info) { return info.param; })

inline bool has_word(const std::string& text, const std::string& word) {
  const auto is_part = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (!is_part(at - 1) && !is_part(at + word.size())) return true;
  }
  return false;
}

// Whether `call` throws `Error` with a message that contains `word` as a whole word.
template <class Error, class Call>
testing::AssertionResult throws_naming(const std::string& word, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (has_word(message, word)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "message '" << message << "' does not name " << word;
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "threw another type: " << error.what();
  }
  return testing::AssertionFailure() << "did not throw; " << word << " is wrong";
}

}  // namespace ovq::kernels::test
