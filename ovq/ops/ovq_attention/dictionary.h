// Writing a complete chunk to the dictionary: choosing new centroids, updating the others, the undo log with which
// backward goes through the writes in reverse, and the gradient of a write. Sparse: at most L rows change.
#pragma once

#include <cstdint>

#include "ovq/core/buffer.h"
#include "ovq/ops/ovq_attention/options.h"
#include "ovq/ops/ovq_attention/state.h"

namespace ovq::kernels {

// For NewCentroids::random: the positions of a chunk with the smallest ranks found centroids, the earlier one on a tie.
uint64_t random_rank(uint64_t seed, int64_t kv_head, int64_t chunk, int64_t position);

namespace detail {

// One head's dictionary during a call: `size` centroids, then the pending tokens: those of the chunk to be written,
// then `carried` ones.
struct Dictionary {
  OvqHead rows;
  int64_t size = 0;
  int64_t key_dim = 0, value_dim = 0;

  // Row of a centroid or, after them, of a pending token; stored as float32.
  float* key(int64_t row) const { return rows.keys + row * rows.key_stride; }
  float* value(int64_t row) const { return rows.values + row * rows.value_stride; }
  // A pending token, whichever way the centroids are stored.
  float* pending_key(int64_t i) const { return key(rows.narrow ? i : size + i); }
  float* pending_value(int64_t i) const { return value(rows.narrow ? i : size + i); }
  // A centroid stored as bfloat16.
  Bfloat16* narrow_key(int64_t row) const { return rows.narrow_keys + row * rows.key_stride; }
  Bfloat16* narrow_value(int64_t row) const { return rows.narrow_values + row * rows.value_stride; }
};

// A token as it was passed in.
struct TokenRow {
  const float* key = nullptr;
  const float* value = nullptr;
  float weight = 1.0f;
};

// A chunk to be written, or just written.
struct ChunkWrite {
  const OvqOptions* options = nullptr;
  int64_t kv_head = 0;
  int64_t chunk = 0;                 // index in the sequence
  int64_t new_count = 0;             // centroids it adds
  int64_t carried = 0;               // pending tokens after it, which remain (rope)
  int32_t* assignment = nullptr;     // [L], encoded as in ovq_attention.h
  const TokenRow* tokens = nullptr;  // [L]; with weights or value_norms, for unwrite_chunk
};

struct WriteScratch {
  Buffer<int32_t> first_member, next_member, founder;
  Buffer<int64_t> order;
  Buffer<float> panels, row;
  Buffer<float> wide;     // a centroid's key and value in float32 if they are stored as bfloat16
  Buffer<float> weights;  // of the chunk's tokens
};

// The rows overwritten by writes, for undoing the writes in reverse order.
struct UndoLog {
  int64_t entries = 0;
  Buffer<int32_t> centroid;               // of each overwritten row
  Buffer<float> rows{Lifetime::scratch};  // key and value of the row before
  int64_t norms = 0;
  Buffer<float> norm;       // with normalize: the norm of each written row of D_k before rescaling
  Buffer<float> count;      // with weights: of each overwritten row
  Buffer<float> shrinkage;  // with value_norms: of each overwritten row

  void reserve(int64_t rows_overwritten, int64_t rows_written, const Dictionary& dictionary, const OvqOptions& options);
};

// Fills write.assignment: which tokens found a centroid, and which centroids the others join. Uses the nearest
// centroids found by the search (rows.best_*) or, if the dictionary is empty, the keys themselves.
void choose_centroids(const Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch);

// counts' <- counts + sum w,  D' <- D + sum w (x - D) / counts' (or the constant rate); founders are appended as rows.
// Without weights w = 1. With value_norms a row of D_v is this mean, rescaled to the average norm of its tokens'
// values,
//   r D_v = mean,  |D_v|' <- |D_v| + sum w (|v| - |D_v|) / counts',  r' <- |mean'| / |D_v|'   (r: rows.shrinkage)
// Rows stored as bfloat16 are rounded once, after all updates; they have no log.
void write_chunk(Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch, UndoLog* log);

// Gradient rows in the layout of the dictionary.
struct DictionaryGradient {
  float* keys = nullptr;
  float* values = nullptr;
  int64_t key_stride = 0, value_stride = 0;
  float* log_counts = nullptr;  // with weights: c dL/dc for a row's count or weight c, to which reads simply add
  float* shrinkage = nullptr;   // with value_norms: of each centroid
};

// Undoes the last write of the log. Turns the gradients of the written rows into those of the rows before the write and
// of the chunk's tokens, whose rows again follow the `size` centroids. Does not restore the tokens' keys and values.
void unwrite_chunk(Dictionary& dictionary, const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log,
                   WriteScratch& scratch);

}  // namespace detail
}  // namespace ovq::kernels
