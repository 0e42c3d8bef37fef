#include "ovq/kernels/attention.h"

#include <algorithm>
#include <vector>

#include "ovq/kernels/backward_block.h"
#include "ovq/kernels/checks.h"
#include "ovq/kernels/parallel.h"
#include "ovq/kernels/simd/read_kernels.h"

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

// Keys read by many rows are first laid side by side: with the heads between them (6 x 128 floats apart) the forward
// reaches 72 instead of 81 % of the peak (one thread, T 2048).
constexpr int64_t kPackFromRows = 64;
constexpr int64_t kPackFromWindow = 4 * kBlockRows;  // in a shorter window a key is read too few times

const float* pack_head(const View<const float>& view, const Sequence& sequence, int64_t head, int64_t count,
                       Buffer<float>& packed) {
  const int64_t stride = padded(view.dim);
  float* to = packed.ensure(count * stride);
  for (int64_t t = 0; t < count; ++t) {
    std::copy_n(view.row(sequence.batch, sequence.first + t, head), view.dim, to + t * stride);
  }
  return to;
}

Reading make_reading(const AttentionInputs& in, const Sequence& sequence, int64_t kv_head, HeadMemory& memory) {
  Reading reading;
  reading.group = in.q.heads / in.k.heads;
  reading.q = head_rows(in.q, sequence, kv_head * reading.group);
  reading.key_dim = in.q.dim;
  reading.value_dim = in.v.dim;
  reading.beta = in.beta.data() + kv_head * reading.group;
  reading.window.count = in.cu_seqlens.empty() ? in.k.time : sequence.length;
  const bool few_reads =
      sequence.length * reading.group < kPackFromRows || (in.window > 0 && in.window < kPackFromWindow);
  if (few_reads) {
    reading.window.keys = in.k.row(sequence.batch, sequence.first, kv_head);
    reading.window.values = in.v.row(sequence.batch, sequence.first, kv_head);
    reading.window.key_stride = in.k.time_stride;
    reading.window.value_stride = in.v.time_stride;
  } else {
    reading.window.keys = pack_head(in.k, sequence, kv_head, reading.window.count, memory.keys);
    reading.window.values = pack_head(in.v, sequence, kv_head, reading.window.count, memory.values);
    reading.window.key_stride = padded(in.k.dim);
    reading.window.value_stride = padded(in.v.dim);
  }
  reading.first_last = in.query_offset;
  if (in.window > 0) reading.span = in.window;
  return reading;
}

// work(sequence, kv head, memory) for each: on a thread of its own, or where there are fewer of them than threads one
// after another, with all threads as its team.
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
    block.first_row = (blocks - 1 - i) * kBlockRows;  // late rows read more keys: the long ones first
    block.rows = std::min(kBlockRows, rows - block.first_row);
    block.o = head_rows(out.o, sequence, kv_head * reading.group);
    if (out.lse.data != nullptr) block.lse = head_rows(out.lse, sequence, kv_head * reading.group);
    kernels.forward(block, memory.team[thread]);
  });
}

// Query blocks in order; gradients of keys and values accumulate in padded rows.
void backward_head(const AttentionInputs& in, const AttentionSaved& saved, const View<const float>& d_o,
                   const AttentionGradients& gradients, const Sequence& sequence, int64_t kv_head, HeadMemory& memory,
                   double* d_beta) {
  const ReadKernels& kernels = read_kernels();
  const Reading reading = make_reading(in, sequence, kv_head, memory);
  const int64_t keys = reading.window.count, head = kv_head * reading.group;
  const int64_t key_stride = padded(in.k.dim), value_stride = padded(in.v.dim);
  float* d_k = memory.d_k.ensure(keys * key_stride);
  float* d_v = memory.d_v.ensure(keys * value_stride);
  std::fill_n(d_k, keys * key_stride, 0.0f);
  std::fill_n(d_v, keys * value_stride, 0.0f);
  BackwardBlock block;
  block.reading = &reading;
  block.o = head_rows(saved.o, sequence, head);
  block.lse = head_rows(saved.lse, sequence, head);
  block.d_o = head_rows(d_o, sequence, head);
  block.d_window = {d_k, d_v, key_stride, value_stride};
  block.d_q = head_rows(gradients.d_q, sequence, head);
  block.d_beta = d_beta;
  const int64_t rows = sequence.length * reading.group;
  for (block.first_row = 0; block.first_row < rows; block.first_row += kBlockRows) {
    block.rows = std::min(kBlockRows, rows - block.first_row);
    backward_block(kernels, block, memory.team);
  }
  for (int64_t t = 0; t < keys; ++t) {
    std::copy_n(d_k + t * key_stride, in.k.dim, gradients.d_k.row(sequence.batch, sequence.first + t, kv_head));
    std::copy_n(d_v + t * value_stride, in.v.dim, gradients.d_v.row(sequence.batch, sequence.first + t, kv_head));
  }
}

}  // namespace

AttentionPlan plan_attention(const char* op, const AttentionInputs& in) {
  check_inputs(op, in.q, in.k, in.v, in.beta);
  const int64_t queries = in.q.time, keys = in.k.time;
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
  check_shape(op, "o", out.o, in.q.batch, in.q.time, in.q.heads, in.v.dim);
  check_shape(op, "lse", out.lse, in.q.batch, in.q.time, in.q.heads, 1, true);
  attention_forward(plan, in, out);
}

void attention_forward(const AttentionPlan& plan, const AttentionInputs& in, const AttentionOutputs& out) {
  const std::vector<Sequence>& sequences = plan.sequences;
  for_each_head(sequences, in.k.heads, [&](size_t sequence, int64_t kv_head, HeadMemory& memory) {
    forward_head(in, out, sequences[sequence], kv_head, memory);
  });
}

void attention_backward(const AttentionInputs& in, const AttentionSaved& saved, View<const float> d_o,
                        const AttentionGradients& gradients) {
  constexpr const char* op = "attention_backward";
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
