// The memory of OVQ-attention. For each sequence of a batch and each kv head it holds a dictionary of centroids, their
// counts and the tokens of the incomplete chunk; also the position. The size depends on the centroids in use and the
// chunk, not on the context.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <span>

#include "ovq/core/bfloat16.h"
#include "ovq/core/buffer.h"
#include "ovq/core/view.h"
#include "ovq/ops/ovq_attention/options.h"

namespace ovq::kernels {

// How the centroids are stored. Everything else (counts, pending tokens, all computation) is float32 in both cases.
enum class StateDtype : uint8_t {
  float32,
  bfloat16,  // half the memory, for inference: a row is rounded at each write
};

constexpr auto enum_names(StateDtype) {
  return std::to_array<EnumName<StateDtype>>(
      {{StateDtype::float32, "float32"}, {StateDtype::bfloat16, "bfloat16"}, {StateDtype::bfloat16, "bf16"}});
}

struct OvqShape {
  int64_t batch = 1, kv_heads = 1, key_dim = 1, value_dim = 1;
  bool operator==(const OvqShape&) const = default;
};

// One head's part of a state, as used by the kernels: row-major rows of `key_stride` and `value_stride` elements (dims
// padded to 16). Rows 0 ... n-1 are centroids; the pending tokens follow.
struct OvqHead {
  float* keys = nullptr;  // only the pending tokens if the centroids are `narrow`
  float* values = nullptr;
  Bfloat16* narrow_keys = nullptr;
  Bfloat16* narrow_values = nullptr;
  bool narrow = false;
  int64_t* counts = nullptr;    // without weights
  float* weights = nullptr;     // with weights: the centroids' counts, then the weights of the pending tokens
  float* log_counts = nullptr;  // base 2; with weights of the pending tokens too
  float* shrinkage = nullptr;   // with value_norms: a centroid's value times this is the mean of its tokens' values
  float* rotated = nullptr;     // with rope: the pending keys, rotated for the window
  float* best_similarity = nullptr;  // of the keys searched so far in this chunk
  int32_t* best_centroid = nullptr;
  int64_t key_stride = 0, value_stride = 0;
};

class OvqState {
 public:
  // An empty dictionary at position 0. Throws std::invalid_argument for a wrong shape or option.
  OvqState(const OvqShape& shape, const OvqOptions& options, StateDtype dtype = StateDtype::float32,
           Lifetime lifetime = Lifetime::owned);
  // A copy stored as `dtype`: rounded to nearest, or widened exactly.
  OvqState to(StateDtype dtype) const;

  const OvqShape& shape() const { return shape_; }
  const OvqOptions& options() const { return options_; }
  StateDtype dtype() const { return dtype_; }
  int64_t position() const { return position_; }
  int64_t size() const { return size_; }  // n
  int64_t pending() const { return pending_tokens(options_, position_); }
  int64_t nbytes() const;
  // For a state that has seen `tokens` tokens in one call.
  static int64_t nbytes_after(const OvqShape& shape, const OvqOptions& options, int64_t tokens,
                              StateDtype dtype = StateDtype::float32);

  // The centroids, [B, n, Hkv, dk] and [B, n, Hkv, dv]. std::invalid_argument if the state has the other dtype.
  View<const float> keys() const;
  View<const float> values() const;
  View<const Bfloat16> narrow_keys() const;
  View<const Bfloat16> narrow_values() const;
  View<const float> pending_keys() const;                              // [B, pending, Hkv, dk], unrotated
  View<const float> pending_values() const;                            // [B, pending, Hkv, dv]
  std::span<const int64_t> counts(int64_t batch, int64_t head) const;  // without weights
  View<const float> real_counts() const;                               // with weights: [B, n, Hkv, 1]
  View<const float> pending_weights() const;                           // with weights: [B, pending, Hkv, 1]
  View<const float> shrinkage() const;                                 // with value_norms: [B, n, Hkv, 1]

  // Sets the limit N from the next write on. A dictionary that is already larger keeps its size.
  void set_centroids(int64_t centroids);

  // Versioned, checksummed, little-endian. `read` validates every field; std::runtime_error describes errors. States
  // are written as version 1 without weights and as version 2 with them, which older programs also read; bfloat16 is
  // version 3, value_norms version 4. The dtype is preserved.
  void write(std::ostream& out) const;
  static OvqState read(std::istream& in);
  // The size of the output of `write` for a state that has seen `tokens` tokens.
  static int64_t file_bytes_after(const OvqShape& shape, const OvqOptions& options, int64_t tokens,
                                  StateDtype dtype = StateDtype::float32);

  // For the kernels: reserves room for `tokens` more tokens, gives access to a head, and commits the processed tokens.
  void reserve(int64_t tokens);
  OvqHead head(int64_t batch, int64_t head) const;
  void advance(int64_t tokens);
  // A float32 state of one sequence and one head for use during a call.
  OvqState copy_head(int64_t batch, int64_t head) const;
  void reset();  // back to position 0; keeps the memory

 private:
  bool narrow() const { return dtype_ == StateDtype::bfloat16; }
  void resize(int64_t centroids, int64_t rows, int64_t window);
  Bfloat16* first_narrow_value() const;
  // Views rows of `data`, which has `capacity` rows per head.
  template <class T>
  View<const T> rows(const T* data, int64_t capacity, int64_t dim, int64_t first, int64_t count) const;
  View<const float> pending_rows(const Buffer<float>& data, int64_t dim) const;
  // One number per row.
  View<const float> numbers(const Buffer<float>& data, int64_t first, int64_t count) const;

  OvqShape shape_;
  OvqOptions options_;
  StateDtype dtype_;
  Lifetime lifetime_;
  int64_t position_ = 0;
  int64_t size_ = 0;
  int64_t capacity_ = 0;         // rows per head
  int64_t window_ = 0;           // of these for pending tokens
  int64_t centroids_ = 0;        // with bfloat16: rows for centroids
  Buffer<float> keys_, values_;  // with bfloat16: only the pending tokens
  Buffer<Bfloat16> narrow_;      // with bfloat16: the centroids, keys of all heads, then values
  Buffer<float> log_counts_, rotated_, best_similarity_;
  Buffer<int64_t> counts_;   // without weights
  Buffer<float> weights_;    // with weights
  Buffer<float> shrinkage_;  // with value_norms
  Buffer<int32_t> best_centroid_;
};

}  // namespace ovq::kernels
