// Random numbers for data, weights and ablations: SplitMix64, which works with any seed. The sequences are the same on
// every platform, unlike those of the standard library's distributions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

namespace ovq {

// A bijection of 64 bits in which every output bit depends on every input bit (SplitMix64's finaliser).
inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15u;  // 2^64 divided by the golden ratio: SplitMix64's stride

// Depends on every number and on the order of the numbers.
inline uint64_t hash_numbers(std::initializer_list<uint64_t> numbers) {
  uint64_t hash = kGoldenRatio;
  for (uint64_t number : numbers) hash = mix_bits(hash + kGoldenRatio + mix_bits(number));
  return hash;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() { return mix_bits(state_ += kGoldenRatio); }

  // Uniform in [0, limit), limit >= 1. Unbiased; needs fewer than two draws on average.
  int64_t below(int64_t limit) {
    uint64_t mask = static_cast<uint64_t>(limit - 1);
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    uint64_t value = next() & mask;
    while (value >= static_cast<uint64_t>(limit)) value = next() & mask;
    return static_cast<int64_t>(value);
  }

  // Uniform in (0, 1].
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }

  template <class T>
  void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace ovq
