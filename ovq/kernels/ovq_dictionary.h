// Writing a complete chunk to the dictionary: the choice of new centroids, the update of the others, the undo log that
// lets backward walk the writes in reverse, and the gradient of a write. Sparse: at most L rows change.
#pragma once

#include <cstdint>

#include "ovq/kernels/memory/buffer.h"
#include "ovq/kernels/ovq_options.h"
#include "ovq/kernels/ovq_state.h"

namespace ovq::kernels {

// For NewCentroids::random: the positions of a chunk with the smallest ranks found centroids, earlier on a tie.
uint64_t random_rank(uint64_t seed, int64_t kv_head, int64_t chunk, int64_t position);

namespace detail {

// One head's dictionary while it is worked on: `size` centroids, and the pending tokens: the chunk to be written, then
// `carried` tokens.
struct Dictionary {
  OvqHead rows;
  int64_t size = 0;
  int64_t key_dim = 0, value_dim = 0;

  // Centroids, then pending tokens; stored as float32.
  float* key(int64_t row) const { return rows.keys + row * rows.key_stride; }
  float* value(int64_t row) const { return rows.values + row * rows.value_stride; }
  // Pending tokens, however the centroids are stored.
  float* pending_key(int64_t i) const { return key(rows.narrow ? i : size + i); }
  float* pending_value(int64_t i) const { return value(rows.narrow ? i : size + i); }
  // Centroids stored as bfloat16.
  Bfloat16* narrow_key(int64_t row) const { return rows.narrow_keys + row * rows.key_stride; }
  Bfloat16* narrow_value(int64_t row) const { return rows.narrow_values + row * rows.value_stride; }
};

// A token as it came.
struct TokenRow {
  const float* key = nullptr;
  const float* value = nullptr;
  float weight = 1.0f;
};

// A chunk about to be written, or just written.
struct ChunkWrite {
  const OvqOptions* options = nullptr;
  int64_t kv_head = 0;
  int64_t chunk = 0;                 // index in the sequence
  int64_t new_count = 0;             // centroids it adds
  int64_t carried = 0;               // pending tokens behind it, which stay (rope)
  int32_t* assignment = nullptr;     // [L], encoded as in ovq_attention.h
  const TokenRow* tokens = nullptr;  // [L]; with weights or value_norms, for unwrite_chunk
};

struct WriteScratch {
  Buffer<int32_t> first_member, next_member, founder;
  Buffer<int64_t> order;
  Buffer<float> panels, row;
  Buffer<float> wide;     // a centroid's key and value that are stored as bfloat16
  Buffer<float> weights;  // of the chunk's tokens
};

// What writes overwrote, so that they can be taken back in reverse order.
struct UndoLog {
  int64_t entries = 0;
  Buffer<int32_t> centroid;               // of each overwritten row
  Buffer<float> rows{Lifetime::scratch};  // its key and value before
  int64_t norms = 0;
  Buffer<float> norm;       // with normalize: of each row of D_k written, before the rescaling
  Buffer<float> count;      // with weights: of each overwritten row before
  Buffer<float> shrinkage;  // with value_norms: the same

  void reserve(int64_t rows_overwritten, int64_t rows_written, const Dictionary& dictionary, const OvqOptions& options);
};

// Fills write.assignment: who founds a centroid, and who joins which. Uses the searched nearest centroids of the chunk
// (rows.best_*), or where the dictionary is empty the keys themselves.
void choose_centroids(const Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch);

// counts' <- counts + sum w,  D' <- D + sum w (x - D) / counts' (or the constant rate); founders become rows. Without
// weights w = 1. With value_norms a row of D_v is that mean as long as its tokens' values are on average,
//   r D_v = mean,  |D_v|' <- |D_v| + sum w (|v| - |D_v|) / counts',  r' <- |mean'| / |D_v|'   (r: rows.shrinkage)
// Rows stored as bfloat16 are rounded once, when all is done to them; they have no log.
void write_chunk(Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch, UndoLog* log);

// Gradient rows laid out as the dictionary's own.
struct DictionaryGradient {
  float* keys = nullptr;
  float* values = nullptr;
  int64_t key_stride = 0, value_stride = 0;
  float* log_counts = nullptr;  // with weights: c dL/dc of a row's count or weight c, which reads simply add to
  float* shrinkage = nullptr;   // with value_norms: of each centroid
};

// Takes back the last write of the log. The gradients of the written rows become those of the rows before and of the
// chunk's tokens, which take their place behind the `size` rows again. Keys and values of the tokens are not restored.
void unwrite_chunk(Dictionary& dictionary, const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log,
                   WriteScratch& scratch);

}  // namespace detail
}  // namespace ovq::kernels
