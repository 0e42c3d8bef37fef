#include "ovq/ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/core/small_rows.h"
#include "ovq/ops/attention/backward_block.h"
#include "ovq/ops/attention/checks.h"
#include "ovq/ops/attention/kernel.h"

namespace ovq::kernels {
namespace {

using namespace detail;

template <class T>
Rows<T> head_rows(const View<T>& view, const Sequence& sequence, int64_t head) {
  return {view.row(sequence.batch, sequence.first, head), view.time_stride, view.head_stride};
}

// Scratch for the work on one kv head.
struct HeadMemory {
  std::vector<Workspace> team;
  Buffer<float> keys{Lifetime::scratch}, values{Lifetime::scratch};  // packed
  Buffer<float> d_k{Lifetime::scratch}, d_v{Lifetime::scratch};
};

// Keys that many rows read are first copied side by side. If the other heads' keys lie between them (6 x 128 floats
// apart), the forward reaches 72 instead of 81 % of the peak (one thread, T 2048).
constexpr int64_t kPackFromRows = 64;
constexpr int64_t kPackFromWindow = 4 * kBlockRows;  // in a shorter window a key is read too few times

void copy_stored(const float* from, int64_t dim, float* to) { std::copy_n(from, dim, to); }
void copy_stored(const Bfloat16* from, int64_t dim, float* to) { widen_row(from, dim, to); }

template <class T>
const float* pack_head(const View<const T>& view, const Sequence& sequence, int64_t head, int64_t count,
                       Buffer<float>& packed) {
  const int64_t stride = padded(view.dim);
  float* to = packed.ensure(count * stride);
  for (int64_t t = 0; t < count; ++t) {
    copy_stored(view.row(sequence.batch, sequence.first + t, head), view.dim, to + t * stride);
  }
  return to;
}

// The sizes of the keys, wherever they are stored.
struct KeySizes {
  int64_t batch, time, heads, dim, value_dim;
};
bool narrow(const AttentionInputs& in) { return in.narrow_k.data != nullptr; }
KeySizes key_sizes(const AttentionInputs& in) {
  if (narrow(in)) return {in.narrow_k.batch, in.narrow_k.time, in.narrow_k.heads, in.narrow_k.dim, in.narrow_v.dim};
  return {in.k.batch, in.k.time, in.k.heads, in.k.dim, in.v.dim};
}

// The window in its stored form.
KeyRun stored_window(const AttentionInputs& in, const Sequence& sequence, int64_t kv_head) {
  if (!narrow(in)) {
    return {.keys = in.k.row(sequence.batch, sequence.first, kv_head),
            .values = in.v.row(sequence.batch, sequence.first, kv_head),
            .key_stride = in.k.time_stride,
            .value_stride = in.v.time_stride};
  }
  return {.key_stride = in.narrow_k.time_stride,
          .value_stride = in.narrow_v.time_stride,
          .narrow_keys = in.narrow_k.row(sequence.batch, sequence.first, kv_head),
          .narrow_values = in.narrow_v.row(sequence.batch, sequence.first, kv_head)};
}

// Copies `count` keys side by side, in float32.
KeyRun packed_window(const AttentionInputs& in, const Sequence& sequence, int64_t kv_head, int64_t count,
                     HeadMemory& memory) {
  const KeySizes sizes = key_sizes(in);
  KeyRun run{.key_stride = padded(sizes.dim), .value_stride = padded(sizes.value_dim)};
  if (narrow(in)) {
    run.keys = pack_head(in.narrow_k, sequence, kv_head, count, memory.keys);
    run.values = pack_head(in.narrow_v, sequence, kv_head, count, memory.values);
  } else {
    run.keys = pack_head(in.k, sequence, kv_head, count, memory.keys);
    run.values = pack_head(in.v, sequence, kv_head, count, memory.values);
  }
  return run;
}

Reading make_reading(const AttentionInputs& in, const Sequence& sequence, int64_t kv_head, HeadMemory& memory) {
  const KeySizes sizes = key_sizes(in);
  Reading reading;
  reading.group = in.q.heads / sizes.heads;
  reading.q = head_rows(in.q, sequence, kv_head * reading.group);
  reading.key_dim = in.q.dim;
  reading.value_dim = sizes.value_dim;
  reading.beta = in.beta.data() + kv_head * reading.group;
  const int64_t rows = sequence.length * reading.group, count = in.cu_seqlens.empty() ? sizes.time : sequence.length;
  const bool few_reads =
      narrow(in) ? rows <= kFewRows : rows < kPackFromRows || (in.window > 0 && in.window < kPackFromWindow);
  reading.window =
      few_reads ? stored_window(in, sequence, kv_head) : packed_window(in, sequence, kv_head, count, memory);
  reading.window.count = count;
  reading.first_last = in.query_offset;
  if (in.window > 0) reading.span = in.window;
  return reading;
}

// The memory that the next block of rows reads for the first time, or writes: its rows of `tensors`, and the keys and
// values that enter the window. Only a short window needs prefetching: a longer one is read over and over.
constexpr size_t kMostUpcoming = 8;
template <size_t N>
std::span<const Upcoming> upcoming_rows(const Reading& reading, int64_t first_row, int64_t rows,
                                        const Rows<const float> (&tensors)[N], const int64_t (&dims)[N],
                                        std::array<Upcoming, kMostUpcoming>& list) {
  static_assert(N + 2 <= kMostUpcoming);
  const int64_t group = reading.group, count = std::min(kBlockRows, rows - first_row) / group;
  if (reading.walked_span() == 0 || count <= 0) return {};
  const int64_t time = first_row / group, key = reading.last(first_row);
  const KeyRun& keys = reading.window;
  list[0] = {keys.keys + key * keys.key_stride, keys.key_stride, count, reading.key_dim};
  list[1] = {keys.values + key * keys.value_stride, keys.value_stride, count, reading.value_dim};
  for (size_t i = 0; i < N; ++i) {
    const bool together = tensors[i].head_stride == dims[i];
    list[2 + i] = {tensors[i].data + time * tensors[i].time_stride, tensors[i].time_stride, count,
                   together ? group * dims[i] : dims[i]};
  }
  return std::span(list).first(2 + N);
}

template <class T>
Rows<const float> constant(const Rows<T>& rows) {
  return {rows.data, rows.time_stride, rows.head_stride};
}

// Calls work(sequence, kv head, memory) for each pair: on one thread each if there are enough pairs, otherwise one
// after another with all threads as a team.
template <class Work>
void for_each_head(const std::vector<Sequence>& sequences, int64_t kv_heads, const Work& work) {
  const int64_t tasks = static_cast<int64_t>(sequences.size()) * kv_heads;
  const int threads = max_threads();
  const bool inside = tasks < threads;
  std::vector<HeadMemory> memory(inside ? 1 : threads);
  for (HeadMemory& own : memory) own.team.resize(inside ? threads : 1);
  parallel_for(tasks, inside ? 1 : threads, [&](int64_t task, int thread) {
    work(static_cast<size_t>(task / kv_heads), task % kv_heads, memory[thread]);
  });
}

void forward_head(const AttentionInputs& in, const AttentionOutputs& out, const Sequence& sequence, int64_t kv_head,
                  HeadMemory& memory) {
  const ReadKernels& kernels = read_kernels();
  const Reading reading = make_reading(in, sequence, kv_head, memory);
  const int64_t rows = sequence.length * reading.group;
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  parallel_for(blocks, static_cast<int>(memory.team.size()), [&](int64_t i, int thread) {
    ForwardBlock block;
    block.reading = &reading;
    // Late rows read more keys, so the longest blocks come first. Within a short window all blocks read equally many.
    block.first_row = (reading.walked_span() > 0 ? i : blocks - 1 - i) * kBlockRows;
    block.rows = std::min(kBlockRows, rows - block.first_row);
    block.o = head_rows(out.o, sequence, kv_head * reading.group);
    if (out.lse.data != nullptr) block.lse = head_rows(out.lse, sequence, kv_head * reading.group);
    std::array<Upcoming, kMostUpcoming> list;
    block.upcoming = upcoming_rows(reading, block.first_row + kBlockRows, rows, {reading.q, constant(block.o)},
                                   {in.q.dim, reading.value_dim}, list);
    kernels.forward(block, memory.team[thread]);
  });
}

// One or a few tokens of many heads, as in decoding. A head's keys have the other heads' keys between them: head by
// head, 65,535 keys of 6 heads of 128 took 24 ms (two threads of a Zen 4); with neighbouring heads together 18.5.
void forward_few_rows(const AttentionInputs& in, const AttentionOutputs& out, const std::vector<Sequence>& sequences) {
  const ReadKernels& kernels = read_kernels();
  const int64_t heads = key_sizes(in).heads, group = in.q.heads / heads, threads = max_threads();
  const auto count = static_cast<int64_t>(sequences.size());
  if (count == 0) return;
  // Each thread takes neighbouring heads.
  const int64_t parts = std::max((heads + kFewHeads - 1) / kFewHeads, std::min(heads, (threads + count - 1) / count));
  std::vector<HeadMemory> memory(threads);
  parallel_for(count * parts, static_cast<int>(threads), [&](int64_t task, int thread) {
    const Sequence& sequence = sequences[task / parts];
    const int64_t first = heads * (task % parts) / parts, end = heads * (task % parts + 1) / parts;
    std::array<Reading, kFewHeads> readings;
    std::array<ForwardBlock, kFewHeads> blocks;
    for (int64_t head = first; head < end; ++head) {
      Reading& reading = readings[head - first] = make_reading(in, sequence, head, memory[thread]);
      ForwardBlock& block = blocks[head - first];
      block.reading = &reading;
      block.rows = sequence.length * group;
      block.o = head_rows(out.o, sequence, head * group);
      if (out.lse.data != nullptr) block.lse = head_rows(out.lse, sequence, head * group);
    }
    memory[thread].team.resize(1);
    kernels.forward_few(std::span(blocks).first(end - first), memory[thread].team[0]);
  });
}

// The gradients of a head's keys and values, in padded rows. Holds only the keys that the current query block sees:
// keys that no later block sees are written out to make room.
class KeyGradients {
 public:
  KeyGradients(const Reading& reading, const AttentionGradients& gradients, const Sequence& sequence, int64_t kv_head,
               HeadMemory& memory)
      : keys_(reading.window.count),
        gradients_(gradients),
        sequence_(sequence),
        kv_head_(kv_head),
        rows_{.key_stride = padded(reading.key_dim), .value_stride = padded(reading.value_dim)} {
    const int64_t held = reading.span < keys_ ? std::min(keys_, reading.span + kBlockRows) : keys_;
    rows_.keys = memory.d_k.ensure(held * rows_.key_stride);
    rows_.values = memory.d_v.ensure(held * rows_.value_stride);
  }

  // Makes room for the keys [begin, end) and keeps the sums from `begin` on.
  const KeyRunGradient& hold(int64_t begin, int64_t end) {
    leave(begin);
    const int64_t kept = end_ - begin;
    if (kept > 0 && begin > rows_.first) {
      const int64_t from = begin - rows_.first;
      std::copy_n(rows_.keys + from * rows_.key_stride, kept * rows_.key_stride, rows_.keys);
      std::copy_n(rows_.values + from * rows_.value_stride, kept * rows_.value_stride, rows_.values);
    }
    rows_.first = begin;
    const int64_t first_new = std::max(begin, end_);
    std::fill_n(rows_.keys + (first_new - begin) * rows_.key_stride, (end - first_new) * rows_.key_stride, 0.0f);
    std::fill_n(rows_.values + (first_new - begin) * rows_.value_stride, (end - first_new) * rows_.value_stride, 0.0f);
    end_ = end;
    return rows_;
  }

  // Writes out the keys before `begin`, which are complete. Keys that were never held have been seen by no query.
  void leave(int64_t begin) {
    for (; left_ < begin; ++left_) {
      float* d_k = gradients_.d_k.row(sequence_.batch, sequence_.first + left_, kv_head_);
      float* d_v = gradients_.d_v.row(sequence_.batch, sequence_.first + left_, kv_head_);
      const int64_t row = left_ - rows_.first;
      if (row >= 0 && left_ < end_) {
        copy_row(rows_.keys + row * rows_.key_stride, gradients_.d_k.dim, d_k);
        copy_row(rows_.values + row * rows_.value_stride, gradients_.d_v.dim, d_v);
      } else {
        std::fill_n(d_k, gradients_.d_k.dim, 0.0f);
        std::fill_n(d_v, gradients_.d_v.dim, 0.0f);
      }
    }
  }

  void finish() { leave(keys_); }

 private:
  int64_t keys_;
  const AttentionGradients& gradients_;
  const Sequence& sequence_;
  int64_t kv_head_;
  KeyRunGradient rows_;
  int64_t end_ = 0;   // end of the keys held
  int64_t left_ = 0;  // keys whose gradients have been written out
};

// Processes the query blocks in order.
void backward_head(const AttentionInputs& in, const AttentionSaved& saved, const View<const float>& d_o,
                   const AttentionGradients& gradients, const Sequence& sequence, int64_t kv_head, HeadMemory& memory,
                   double* d_beta) {
  const ReadKernels& kernels = read_kernels();
  const Reading reading = make_reading(in, sequence, kv_head, memory);
  const int64_t head = kv_head * reading.group;
  KeyGradients key_gradients(reading, gradients, sequence, kv_head, memory);
  BackwardBlock block;
  block.reading = &reading;
  block.o = head_rows(saved.o, sequence, head);
  block.lse = head_rows(saved.lse, sequence, head);
  block.d_o = head_rows(d_o, sequence, head);
  block.d_q = head_rows(gradients.d_q, sequence, head);
  block.d_beta = d_beta;
  const int64_t rows = sequence.length * reading.group;
  for (block.first_row = 0; block.first_row < rows; block.first_row += kBlockRows) {
    block.rows = std::min(kBlockRows, rows - block.first_row);
    block.d_window = key_gradients.hold(block.window_begin(), block.window_end());
    std::array<Upcoming, kMostUpcoming> list;
    block.upcoming =
        upcoming_rows(reading, block.first_row + kBlockRows, rows, {reading.q, block.o, block.d_o, constant(block.d_q)},
                      {in.q.dim, in.v.dim, in.v.dim, in.q.dim}, list);
    if (!block.upcoming.empty()) {  // destinations of the gradients that the next block completes
      const int64_t first = block.window_begin(), count = reading.first(block.first_row + kBlockRows) - first;
      const auto leaving = [&](const View<float>& view) -> Upcoming {
        return {view.row(sequence.batch, sequence.first + first, kv_head), view.time_stride, count, view.dim};
      };
      list[6] = leaving(gradients.d_k);
      list[7] = leaving(gradients.d_v);
      block.upcoming = list;
    }
    backward_block(kernels, block, memory.team);
  }
  key_gradients.finish();
}

// A view for checks, which look at sizes and at whether there is data, never at its values.
View<const float> shape_of(const View<const Bfloat16>& x) {
  return {reinterpret_cast<const float*>(x.data), x.batch, x.time, x.heads, x.dim, 0, 0, 0};
}

}  // namespace

AttentionPlan plan_attention(const char* op, const AttentionInputs& in) {
  if (narrow(in)) {
    check_inputs(op, in.q, shape_of(in.narrow_k), shape_of(in.narrow_v), in.beta);
    check(in.k.data == nullptr && in.v.data == nullptr, op, "k is given twice, as float32 and as bfloat16");
  } else {
    check_inputs(op, in.q, in.k, in.v, in.beta);
  }
  const int64_t queries = in.q.time, keys = key_sizes(in).time;
  check(in.window >= 0, op, "window is ", in.window, "; must be at least 0 (0: none)");
  check(in.query_offset >= 0, op, "query_offset is ", in.query_offset, "; must be at least 0");
  check(in.query_offset <= keys - queries, op, "query_offset is ", in.query_offset, " with ", queries,
        " queries; must be at most ", keys - queries, ", as k has time ", keys);
  check(in.cu_seqlens.empty() || keys == queries, op, "k has time ", keys, "; packed sequences need q's time ",
        queries);
  return {check_sequences(op, in.q.batch, queries, in.cu_seqlens)};
}

void attention_forward(const AttentionInputs& in, const AttentionOutputs& out) {
  constexpr const char* op = "attention";
  const AttentionPlan plan = plan_attention(op, in);
  check_shape(op, "o", out.o, in.q.batch, in.q.time, in.q.heads, key_sizes(in).value_dim);
  check_shape(op, "lse", out.lse, in.q.batch, in.q.time, in.q.heads, 1, true);
  attention_forward(plan, in, out);
}

void attention_forward(const AttentionPlan& plan, const AttentionInputs& in, const AttentionOutputs& out) {
  const std::vector<Sequence>& sequences = plan.sequences;
  const int64_t heads = key_sizes(in).heads, group = in.q.heads / heads;
  if (std::all_of(sequences.begin(), sequences.end(),
                  [&](const Sequence& x) { return x.length * group <= kFewRows; })) {
    return forward_few_rows(in, out, sequences);
  }
  for_each_head(sequences, heads, [&](size_t sequence, int64_t kv_head, HeadMemory& memory) {
    forward_head(in, out, sequences[sequence], kv_head, memory);
  });
}

void attention_backward(const AttentionInputs& in, const AttentionSaved& saved, View<const float> d_o,
                        const AttentionGradients& gradients) {
  constexpr const char* op = "attention_backward";
  check(!narrow(in), op, "k is bfloat16; must be float32");
  const AttentionPlan plan = plan_attention(op, in);
  const View<const float>&q = in.q, &k = in.k, &v = in.v;
  check_shape(op, "o", saved.o, q.batch, q.time, q.heads, v.dim);
  check_shape(op, "lse", saved.lse, q.batch, q.time, q.heads, 1);
  check_shape(op, "d_o", d_o, q.batch, q.time, q.heads, v.dim);
  check_shape(op, "d_q", gradients.d_q, q.batch, q.time, q.heads, q.dim);
  check_shape(op, "d_k", gradients.d_k, k.batch, k.time, k.heads, k.dim);
  check_shape(op, "d_v", gradients.d_v, v.batch, v.time, v.heads, v.dim);
  check(gradients.d_beta.size() == in.beta.size(), op, "d_beta has ", gradients.d_beta.size(), " elements; must be ",
        in.beta.size());
  attention_backward(plan, in, saved, d_o, gradients);
}

void attention_backward(const AttentionPlan& plan, const AttentionInputs& in, const AttentionSaved& saved,
                        View<const float> d_o, const AttentionGradients& gradients) {
  const std::vector<Sequence>& sequences = plan.sequences;
  const View<const float>&q = in.q, &k = in.k;
  const int64_t group = q.heads / k.heads;
  std::vector<double> d_beta(sequences.size() * q.heads, 0.0);
  for_each_head(sequences, k.heads, [&](size_t sequence, int64_t kv_head, HeadMemory& memory) {
    backward_head(in, saved, d_o, gradients, sequences[sequence], kv_head, memory,
                  d_beta.data() + static_cast<int64_t>(sequence) * q.heads + kv_head * group);
  });
  for (int64_t h = 0; h < q.heads; ++h) {
    double sum = 0.0;
    for (size_t s = 0; s < sequences.size(); ++s) sum += d_beta[s * q.heads + h];
    gradients.d_beta[h] = static_cast<float>(sum);
  }
}

}  // namespace ovq::kernels
