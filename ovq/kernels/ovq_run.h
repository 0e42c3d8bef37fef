// One kv head of one sequence on its way through the chunks: where tokens go, what a chunk's queries read, and when a
// chunk is written. Forward and backward (which repeats the writes) walk the same way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ovq/kernels/checks.h"
#include "ovq/kernels/ovq_attention.h"
#include "ovq/kernels/ovq_dictionary.h"
#include "ovq/kernels/rotary.h"
#include "ovq/kernels/simd/read_kernels.h"

namespace ovq::kernels::detail {

std::vector<OvqStateInfo> info_of(std::span<const OvqState> states);

// Assignments must be ones that a run could have made: founders number the new centroids by position, the others join a
// centroid that is there.
void check_assignments(const char* op, const OvqInputs& inputs, const OvqSequence& sequence, int64_t kv_head,
                       std::span<const int32_t> assignments);

// The rotary table that the sequences need; nothing without rope.
std::shared_ptr<const RotaryTable> make_rotary(const OvqInputs& inputs, const std::vector<OvqSequence>& sequences);

// The rows of a kv head at `count` time steps from `first` on; of query heads that do not lie side by side only the
// first.
template <class T>
Upcoming upcoming(const View<T>& view, int64_t batch, int64_t first, int64_t count, int64_t kv_head, int64_t kv_heads) {
  if (count == 0) return {};
  const int64_t group = view.heads / kv_heads;
  const bool together = view.head_stride == view.dim;
  return {view.row(batch, first, kv_head * group), view.time_stride, count, together ? group * view.dim : view.dim};
}

class OvqRun {
 public:
  OvqRun(const OvqInputs& inputs, const OvqSequence& sequence, int64_t kv_head, const OvqHead& rows,
         const RotaryTable* rotary);

  int64_t position() const { return position_; }
  int64_t end() const { return sequence_.position + sequence_.tokens.length; }
  const Dictionary& dictionary() const { return dictionary_; }
  int64_t chunk() const { return position_ / options_.chunk; }
  int64_t chunk_row() const { return position_ % options_.chunk; }
  // Tokens of the previous chunk that the window holds.
  int64_t previous() const { return options_.rope && chunk() > 0 ? options_.chunk : 0; }
  // The rotation of row i of the window: positions 1 ... L in the previous chunk, L + 1 ... 2 L in the current one.
  const float* rotary_row(int64_t i) const {
    return i < previous() ? rotary_->previous_row(i) : rotary_->current_row(i - previous());
  }
  // Tokens until the chunk or the sequence ends.
  int64_t piece() const { return std::min(options_.chunk - chunk_row(), end() - position_); }

  // Puts the next `count` tokens behind the pending ones.
  void append(int64_t count);
  // What the queries of the last `count` appended tokens read.
  Reading reading(int64_t count) const;
  // The position moves past the appended tokens; true if that completes a chunk that is to be written.
  bool advance(int64_t count);
  // That chunk; `assignment` is for the caller to fill.
  ChunkWrite next_write(int32_t* assignment) const;
  void write(const ChunkWrite& write, WriteScratch& scratch, UndoLog* log);

  // A token of the window, or of the chunk that was just written: where it came from.
  TokenRow token(int64_t position, const OvqState* initial, int64_t batch) const;
  // Backward: the run as it was when the queries of chunk `chunk` read, once its write has been taken back; the
  // window's tokens are fetched again, those before the call from `initial`. `rows` of the chunk's tokens count.
  void rewind(int64_t chunk, int64_t rows, const OvqState* initial, int64_t batch);
  void unwrite(const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log, WriteScratch& scratch);

 private:
  void rotate_window(int64_t first, int64_t count);
  // The tokens from `position` on become rows first ... first + count - 1 of the window.
  void place(int64_t position, int64_t count, int64_t first, const OvqState* initial, int64_t batch);

  const OvqInputs& inputs_;
  const OvqSequence& sequence_;
  const OvqOptions& options_;
  int64_t kv_head_;
  const RotaryTable* rotary_;
  Dictionary dictionary_;
  int64_t position_;
};

}  // namespace ovq::kernels::detail
