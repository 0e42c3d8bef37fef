// bfloat16: the upper half of a float, with its range and 8 bits of precision. For storage only; all computation is in
// float.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace ovq::kernels {

struct Bfloat16 {
  uint16_t bits = 0;
  bool operator==(const Bfloat16&) const = default;
};

inline float to_float(Bfloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// Rounds to nearest, ties to even. NaN stays NaN.
inline Bfloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  const uint32_t quiet = bits | 0x400000u;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>((nan ? quiet : rounded) >> 16)};
}

namespace detail {

// to[i] <- f(from[i]); the rows must not overlap. Works in blocks that compile to a few vector instructions.
template <class From, class To, class F>
inline void convert_row(const From* from, int64_t dim, To* to, const F& f) {
  constexpr int64_t kBlock = 16;
  int64_t i = 0;
  for (; i + kBlock <= dim; i += kBlock) {
    From x[kBlock];
    To y[kBlock];
    std::memcpy(x, from + i, sizeof(x));
    for (int64_t j = 0; j < kBlock; ++j) y[j] = f(x[j]);
    std::memcpy(to + i, y, sizeof(y));
  }
  for (; i < dim; ++i) to[i] = f(from[i]);
}

inline void widen_row(const Bfloat16* from, int64_t dim, float* to) { convert_row(from, dim, to, to_float); }
inline void narrow_row(const float* from, int64_t dim, Bfloat16* to) { convert_row(from, dim, to, to_bfloat16); }

}  // namespace detail
}  // namespace ovq::kernels
