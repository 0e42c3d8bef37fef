// The interface to instruction-set specific code: attention of a block of query rows to runs of keys, forward and
// backward, and the search for the nearest centroid. Everything above it (which keys, which rows, which thread) is
// plain C++.
//
// A row is one query of one query head; the queries of a kv head's group share its keys, so rows are flattened as row =
// time * group + head. A panel of rows (16, or 32 with AVX-512) sits side by side in vector lanes: keys are read in
// place and broadcast, and maximum, sum and argmax need no horizontal operation.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "ovq/core/bfloat16.h"
#include "ovq/core/buffer.h"

namespace ovq::kernels::detail {

inline constexpr int64_t kPadding = 16;     // floats; rows of keys, values and their gradients are padded to it
inline constexpr int64_t kBlockRows = 128;  // rows that share one pass over the keys; they fit in L2 beside a tile
inline constexpr int64_t kTile = 192;       // keys per step of the running softmax; the borders determine the rounding
inline constexpr int64_t kBackwardTile = 96;  // keys per step of the backward
inline constexpr int64_t kFewRows = 5;        // of a block that reads its keys in their stored form, bfloat16 or not
inline constexpr int64_t kFewHeads = 8;       // that may be processed together
inline constexpr int64_t kWalkedSpan = 512;   // a window up to this size is one step of the running softmax

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
inline int64_t padded(int64_t dim) { return round_up(dim, kPadding); }

// Rows of one kv head inside a [time, heads, dim] tensor: row r is data + (r / group) * time_stride + (r % group) *
// head_stride.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t time_stride = 0, head_stride = 0;
  T* at(int64_t row, int64_t group) const {
    if (group == 1) return data + row * time_stride;  // these divisions are noticeable in small chunks
    return data + row / group * time_stride + row % group * head_stride;
  }
};

// Consecutive keys and values. If they are stored as bfloat16, they are in `narrow` members and the others are null.
struct KeyRun {
  const float* keys = nullptr;
  const float* values = nullptr;
  const float* log_counts = nullptr;  // base 2, added to the scores; nullptr: zero
  int64_t key_stride = 0, value_stride = 0;
  int64_t count = 0;
  const Bfloat16* narrow_keys = nullptr;
  const Bfloat16* narrow_values = nullptr;

  bool narrow() const { return narrow_keys != nullptr; }
};

// Where the gradients of a KeyRun accumulate, in padded rows.
struct KeyRunGradient {
  float* keys = nullptr;
  float* values = nullptr;
  int64_t key_stride = 0, value_stride = 0;
  float* log_counts = nullptr;  // one per key, natural logarithm; nullptr: not wanted
  int64_t first = 0;            // the key of the first gradient row
};

// The queries of one kv head and what they read: the whole dictionary, and the window's keys last - span + 1 ... last
// with last = first_last + time.
struct Reading {
  Rows<const float> q;
  int64_t group = 1;
  int64_t key_dim = 0, value_dim = 0;
  const float* beta = nullptr;  // [group]
  const float* rotary =
      nullptr;  // [time][key_dim]: cosines, then sines, of each query's position; nullptr: no rotation
  KeyRun dictionary;
  KeyRun window;
  int64_t first_last = 0;
  int64_t span = std::numeric_limits<int64_t>::max();

  int64_t last(int64_t row) const { return first_last + (group == 1 ? row : row / group); }
  int64_t first(int64_t row) const {
    const int64_t end = last(row);
    return end < span ? 0 : end - span + 1;
  }
  float beta_of(int64_t row) const { return beta[group == 1 ? 0 : row % group]; }
  // The span if it is short enough that a row's visible keys form one step of its softmax; otherwise 0.
  int64_t walked_span() const { return span <= kWalkedSpan ? span : 0; }
};

// Rows that will be read soon, for the next chunk or tile: only a prefetch hint.
struct Upcoming {
  const float* data = nullptr;
  int64_t stride = 0, count = 0, dim = 0;
};

struct ForwardBlock {
  const Reading* reading = nullptr;
  int64_t first_row = 0, rows = 0;  // at most kBlockRows
  Rows<float> o;
  Rows<float> lse;  // optional
  // Keys to search the dictionary for in the same pass. NaN never wins; ties go to the lower index.
  const float* search = nullptr;
  int64_t search_stride = 0, search_count = 0;
  float* best_similarity = nullptr;
  int32_t* best_centroid = nullptr;
  std::span<const Upcoming> upcoming;
};

struct BackwardBlock {
  const Reading* reading = nullptr;
  int64_t first_row = 0, rows = 0;  // at most kBlockRows
  Rows<const float> o, lse, d_o;
  KeyRunGradient d_dictionary, d_window;
  Rows<float> d_q;
  double* d_beta = nullptr;  // [group], added to
  std::span<const Upcoming> upcoming;

  int64_t dictionary_tiles() const { return (reading->dictionary.count + kBackwardTile - 1) / kBackwardTile; }
  // The window's keys that some row of the block sees, and the size of their tiles: one tile if they are few.
  int64_t window_begin() const { return reading->first(first_row); }
  int64_t window_end() const { return reading->last(first_row + rows - 1) + 1; }
  int64_t window_tile() const {
    const int64_t keys = window_end() - window_begin();
    if (keys > 4 * kBackwardTile) return kBackwardTile;
    return keys > 2 * kBackwardTile ? round_up((keys + 1) / 2, 4) : keys;
  }
  int64_t tiles() const {
    return dictionary_tiles() + (window_end() - window_begin() + window_tile() - 1) / window_tile();
  }
};

// The scratch memory of one thread. `packed` of a backward block is shared by the threads that process its tiles.
struct Workspace {
  Buffer<float> packed{Lifetime::scratch};
  Buffer<float> scores{Lifetime::scratch};
  Buffer<float> d_q{Lifetime::scratch};
  Buffer<float> wide{Lifetime::scratch};  // a tile of keys and values stored as bfloat16, widened
};

struct ReadKernels {
  const char* isa;
  int64_t panel;  // rows

  void (*forward)(const ForwardBlock& block, Workspace& workspace);
  // The same for up to kFewHeads heads of equal sizes, at most kFewRows rows each, without a search. The results are
  // the same as one by one, bit for bit.
  void (*forward_few)(std::span<const ForwardBlock> heads, Workspace& workspace);

  // Backward of a block: pack once, then each tile (in any order, on any thread, as long as d_q is summed in tile
  // order), then finish. `d_q` holds key_dim floats for each row, with the rows rounded up to whole panels; `add` tells
  // whether the tile adds to it.
  void (*backward_pack)(const BackwardBlock& block, Workspace& shared);
  void (*backward_tile)(const BackwardBlock& block, const Workspace& shared, int64_t tile, Workspace& own, float* d_q,
                        bool add);
  void (*backward_finish)(const BackwardBlock& block, const Workspace& shared, const float* d_q);

  // similarities[i] = keys[i] . query for the founding chunk, the same bit for bit in any order of calls. `panels`
  // holds key_dim floats for each key, with the keys rounded up to whole panels.
  void (*similarities)(const float* panels, int64_t count, int64_t dim, const float* query, float* similarities);
  void (*pack_keys)(const float* keys, int64_t stride, int64_t count, int64_t dim, float* panels);
  // ranks[i] = the number of elements that sort before numbers[i], ties in their order. Both have room for
  // padded(count).
  void (*rank)(const int64_t* numbers, int64_t count, int64_t* ranks);
};

const ReadKernels& read_kernels();  // of the selected instruction set

}  // namespace ovq::kernels::detail
