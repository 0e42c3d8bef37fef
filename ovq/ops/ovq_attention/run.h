// One kv head of one sequence on its way through the chunks: where tokens are stored, what a chunk's queries read, and
// when a chunk is written. Forward and backward (which repeats the writes) use the same code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ovq/ops/attention/checks.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/ovq_attention/dictionary.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/rotary/rotary.h"

namespace ovq::kernels::detail {

std::vector<OvqStateInfo> info_of(std::span<const OvqState> states);

// Checks that a run could have made these assignments: founders number the new centroids by position, the others join
// an existing centroid.
void check_assignments(const char* op, const OvqInputs& inputs, const OvqSequence& sequence, int64_t kv_head,
                       std::span<const int32_t> assignments);

// The rotary table for these sequences; null without rope.
std::shared_ptr<const RotaryTable> make_rotary(const OvqInputs& inputs, const std::vector<OvqSequence>& sequences);

// The rows of a kv head at `count` time steps from `first` on. If the query heads of a kv head are not adjacent, only
// those of the first.
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
  // Number of tokens of the previous chunk in the window.
  int64_t previous() const { return options_.rope && chunk() > 0 ? options_.chunk : 0; }
  // The rotation of row i of the window: positions 1 ... L in the previous chunk, L + 1 ... 2 L in the current one.
  const float* rotary_row(int64_t i) const {
    return i < previous() ? rotary_->previous_row(i) : rotary_->current_row(i - previous());
  }
  // Tokens until the chunk or the sequence ends.
  int64_t piece() const { return std::min(options_.chunk - chunk_row(), end() - position_); }

  // Appends the next `count` tokens to the pending ones.
  void append(int64_t count);
  // The keys and values that the queries of the last `count` appended tokens read.
  Reading reading(int64_t count) const;
  // Moves the position past the appended tokens; returns whether this completes a chunk that is to be written.
  bool advance(int64_t count);
  // Describes this chunk; the caller fills `assignment`.
  ChunkWrite next_write(int32_t* assignment) const;
  void write(const ChunkWrite& write, WriteScratch& scratch, UndoLog* log);

  // The original row of a token of the window or of the chunk just written.
  TokenRow token(int64_t position, const OvqState* initial, int64_t batch) const;
  // Backward: restores the run to the state in which chunk `chunk` was read, after its write has been undone. Reloads
  // the window's tokens, those before the call from `initial`; only `rows` of the chunk's tokens count.
  void rewind(int64_t chunk, int64_t rows, const OvqState* initial, int64_t batch);
  void unwrite(const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log, WriteScratch& scratch);

 private:
  void rotate_window(int64_t first, int64_t count);
  // Copies the tokens from `position` on to the rows first ... first + count - 1 of the window.
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
