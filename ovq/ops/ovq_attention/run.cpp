#include "ovq/ops/ovq_attention/run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ovq/core/small_rows.h"

namespace ovq::kernels {
namespace {

// Every element positive, at most kLargestWeight.
void check_weights(const char* op, const View<const float>& weights) {
  for (int64_t b = 0; b < weights.batch; ++b) {
    for (int64_t t = 0; t < weights.time; ++t) {
      for (int64_t h = 0; h < weights.heads; ++h) {
        const float weight = *weights.row(b, t, h);
        check(weight > 0.0f && weight <= kLargestWeight, op, "weights[", b, ", ", t, ", ", h, "] is ", weight,
              "; must be positive and finite, at most ", kLargestWeight);
      }
    }
  }
}

}  // namespace

OvqPlan plan_ovq_attention(const char* op, const OvqInputs& in, std::span<const OvqStateInfo> states) {
  check_inputs(op, in.q, in.k, in.v, in.beta);
  check(in.k.time == in.q.time, op, "k has time ", in.k.time, "; must equal q's ", in.q.time);
  check_options(op, in.options, in.q.dim);
  if (in.options.weighted) {
    check_shape(op, "weights", in.weights, in.k.batch, in.k.time, in.k.heads, 1);
    check_weights(op, in.weights);
  } else {
    check(in.weights.data == nullptr, op, "weights are given; options.weighted must say so");
  }
  const std::vector<Sequence> tokens = check_sequences(op, in.q.batch, in.q.time, in.cu_seqlens);
  const bool packed = !in.cu_seqlens.empty();
  const int64_t expected = packed ? static_cast<int64_t>(tokens.size()) : 1;
  check(states.empty() || static_cast<int64_t>(states.size()) == expected, op, "states has ", states.size(),
        " elements; must be ", expected, packed ? ", one per packed sequence" : ", for the whole batch");
  const OvqShape shape = {packed ? 1 : in.q.batch, in.k.heads, in.k.dim, in.v.dim};
  for (size_t i = 0; i < states.size(); ++i) {
    const OvqShape& has = states[i].shape;
    check(has == shape, op, "states[", i, "] is for batch ", has.batch, ", ", has.kv_heads, " kv heads, key dim ",
          has.key_dim, ", value dim ", has.value_dim, "; must be ", shape.batch, ", ", shape.kv_heads, ", ",
          shape.key_dim, ", ", shape.value_dim);
    OvqOptions made_with = states[i].options;
    check(made_with.weighted == in.options.weighted, op, "states[", i, "] was made ",
          made_with.weighted ? "with weights; weights are missing" : "without weights; weights are given");
    made_with.centroids = in.options.centroids;
    check(made_with == in.options, op, "states[", i, "] was made with other options; only centroids may change");
  }

  OvqPlan plan;
  plan.states = static_cast<int64_t>(states.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    OvqSequence sequence;
    sequence.tokens = tokens[i];
    if (!states.empty()) {
      sequence.state = packed ? static_cast<int64_t>(i) : 0;
      const OvqStateInfo& state = states[sequence.state];
      sequence.position = state.position;
      sequence.size = state.size;
      sequence.pending = pending_tokens(state.options, state.position);
    }
    check(sequence.position <= std::numeric_limits<int32_t>::max() - tokens[i].length, op, "q has time ",
          tokens[i].length, " after position ", sequence.position, "; a sequence must stay below 2^31 tokens");
    sequence.assignments = plan.assignments;
    plan.assignments += (sequence.pending + tokens[i].length) * in.k.heads;
    plan.sequences.push_back(sequence);
  }
  return plan;
}

namespace detail {

std::vector<OvqStateInfo> info_of(std::span<const OvqState> states) {
  std::vector<OvqStateInfo> info;
  for (const OvqState& state : states) info.push_back({state.shape(), state.options(), state.position(), state.size()});
  return info;
}

void check_assignments(const char* op, const OvqInputs& in, const OvqSequence& sequence, int64_t kv_head,
                       std::span<const int32_t> assignments) {
  const OvqOptions& options = in.options;
  const int64_t chunk = options.chunk, lag = options.rope ? chunk : 0;
  int64_t size = sequence.size;
  const int64_t start = sequence.position - sequence.position % chunk + chunk;
  for (int64_t end = start; end <= sequence.position + sequence.tokens.length; end += chunk) {
    const int64_t committed = end - lag;
    if (committed <= 0) continue;
    const int64_t new_count = new_centroid_count(options, size, committed);
    const int64_t joinable = size == 0 ? new_count : size;
    int64_t founded = 0;
    for (int64_t token = committed - chunk; token < committed; ++token) {
      const int32_t a = assignments[sequence.assignments + sequence.assignment_row(token) * in.k.heads + kv_head];
      if (a >= 0) {
        check(a < joinable, op, "assignments give token ", token, " centroid ", a, "; it may join one of ", joinable);
      } else {
        check(a != kUnassigned && ~a == size + founded, op, "assignments let token ", token, " found centroid ", ~a,
              "; the next one is ", size + founded);
        ++founded;
      }
    }
    check(founded == new_count, op, "assignments found ", founded, " centroids in the chunk that ends at token ",
          committed, "; must be ", new_count);
    size += new_count;
  }
}

std::shared_ptr<const RotaryTable> make_rotary(const OvqInputs& in, const std::vector<OvqSequence>& sequences) {
  if (!in.options.rope) return nullptr;
  int64_t furthest = 0;
  for (const OvqSequence& sequence : sequences)
    furthest = std::max(furthest, sequence.position + sequence.tokens.length);
  return rotary_table(in.options.chunk, in.q.dim, in.options.rope_base, furthest);
}

OvqRun::OvqRun(const OvqInputs& inputs, const OvqSequence& sequence, int64_t kv_head, const OvqHead& rows,
               const RotaryTable* rotary)
    : inputs_(inputs),
      sequence_(sequence),
      options_(inputs.options),
      kv_head_(kv_head),
      rotary_(rotary),
      dictionary_{rows, sequence.size, inputs.k.dim, inputs.v.dim},
      position_(sequence.position) {}

// rotated[i] for the window's rows first ... first + count - 1
void OvqRun::rotate_window(int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; ++i) {
    rotate(dictionary_.pending_key(i), rotary_row(i), dictionary_.key_dim, 1.0f,
           dictionary_.rows.rotated + i * dictionary_.rows.key_stride);
  }
}

TokenRow OvqRun::token(int64_t position, const OvqState* initial, int64_t batch) const {
  if (position < sequence_.position) {
    const int64_t pending = sequence_.assignment_row(position);
    return {initial->pending_keys().row(batch, pending, kv_head_),
            initial->pending_values().row(batch, pending, kv_head_),
            options_.weighted ? *initial->pending_weights().row(batch, pending, kv_head_) : 1.0f};
  }
  const int64_t from = sequence_.tokens.first + position - sequence_.position, of_batch = sequence_.tokens.batch;
  return {inputs_.k.row(of_batch, from, kv_head_), inputs_.v.row(of_batch, from, kv_head_),
          options_.weighted ? *inputs_.weights.row(of_batch, from, kv_head_) : 1.0f};
}

void OvqRun::place(int64_t position, int64_t count, int64_t first, const OvqState* initial, int64_t batch) {
  // Rows have a fixed stride except for tokens of an incoming state. In heads of 16, computing each address costs more
  // than copying the row.
  constexpr int64_t kAhead = 12;
  const int64_t old = std::clamp<int64_t>(sequence_.position - position, 0, count);
  for (int64_t i = 0; i < count;) {
    const TokenRow from = token(position + i, initial, batch);
    const int64_t rows = i < old ? 1 : count - i;
    for (int64_t row = 0; row < rows; ++row, ++i) {
      // When backward repeats the writes, no other work hides the memory latency.
      if (i >= old && position + i + kAhead < end()) {
        fetch_row(from.key + (row + kAhead) * inputs_.k.time_stride, dictionary_.key_dim);
        fetch_row(from.value + (row + kAhead) * inputs_.v.time_stride, dictionary_.value_dim);
      }
      copy_row(from.key + row * inputs_.k.time_stride, dictionary_.key_dim, dictionary_.pending_key(first + i));
      copy_row(from.value + row * inputs_.v.time_stride, dictionary_.value_dim, dictionary_.pending_value(first + i));
    }
  }
  if (!options_.weighted) return;
  const View<const float>& weights = inputs_.weights;
  const int64_t from = sequence_.tokens.first + position + old - sequence_.position;
  const float* given = old < count ? weights.row(sequence_.tokens.batch, from, kv_head_) : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = dictionary_.size + first + i;
    const float weight = i < old ? token(position + i, initial, batch).weight : given[(i - old) * weights.time_stride];
    dictionary_.rows.weights[row] = weight;
    dictionary_.rows.log_counts[row] = std::log2(weight);
  }
}

void OvqRun::append(int64_t count) {
  const int64_t first = previous() + chunk_row();
  place(position_, count, first, nullptr, 0);
  if (options_.rope) rotate_window(first, count);
}

Reading OvqRun::reading(int64_t count) const {
  const OvqHead& rows = dictionary_.rows;
  Reading reading;
  reading.group = inputs_.q.heads / inputs_.k.heads;
  const int64_t from = sequence_.tokens.first + position_ - sequence_.position;
  reading.q = {inputs_.q.row(sequence_.tokens.batch, from, kv_head_ * reading.group), inputs_.q.time_stride,
               inputs_.q.head_stride};
  reading.key_dim = dictionary_.key_dim;
  reading.value_dim = dictionary_.value_dim;
  reading.beta = inputs_.beta.data() + kv_head_ * reading.group;
  if (options_.rope) reading.rotary = rotary_->current_row(chunk_row());
  reading.dictionary = {rows.narrow ? nullptr : rows.keys,
                        rows.narrow ? nullptr : rows.values,
                        rows.log_counts,
                        rows.key_stride,
                        rows.value_stride,
                        dictionary_.size,
                        rows.narrow_keys,
                        rows.narrow_values};
  reading.window = {options_.rope ? rows.rotated : dictionary_.pending_key(0),
                    dictionary_.pending_value(0),
                    options_.weighted ? rows.log_counts + dictionary_.size : nullptr,
                    rows.key_stride,
                    rows.value_stride,
                    previous() + chunk_row() + count};
  reading.first_last = previous() + chunk_row();
  return reading;
}

bool OvqRun::advance(int64_t count) {
  position_ += count;
  if (position_ % options_.chunk != 0) return false;
  if (!options_.rope || position_ > options_.chunk) return true;
  rotate_window(0, options_.chunk);  // the first chunk becomes the previous one; nothing is written yet
  return false;
}

ChunkWrite OvqRun::next_write(int32_t* assignment) const {
  const int64_t chunk = options_.chunk;
  const int64_t committed = options_.rope ? position_ - chunk : position_;
  return {.options = &options_,
          .kv_head = kv_head_,
          .chunk = committed / chunk - 1,
          .new_count = new_centroid_count(options_, dictionary_.size, committed),
          .carried = options_.rope ? chunk : 0,
          .assignment = assignment};
}

void OvqRun::write(const ChunkWrite& write, WriteScratch& scratch, UndoLog* log) {
  write_chunk(dictionary_, write, scratch, log);
  if (options_.rope) rotate_window(0, options_.chunk);
}

void OvqRun::rewind(int64_t chunk, int64_t rows, const OvqState* initial, int64_t batch) {
  position_ = chunk * options_.chunk;
  const int64_t window = previous() + rows;
  const int64_t first = position_ - previous();
  place(first, window, 0, initial, batch);
  if (options_.rope) rotate_window(0, window);
  position_ = std::max(position_, sequence_.position);
}

void OvqRun::unwrite(const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log, WriteScratch& scratch) {
  unwrite_chunk(dictionary_, write, gradient, log, scratch);
}

}  // namespace detail
}  // namespace ovq::kernels
