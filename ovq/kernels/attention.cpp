#include "ovq/kernels/attention.h"

#include <algorithm>
#include <vector>

#include "ovq/kernels/backward_block.h"
#include "ovq/kernels/checks.h"
#include "ovq/kernels/parallel.h"
#include "ovq/kernels/read_kernels.h"

namespace ovq::kernels {
namespace {

using namespace detail;

// The checked sequences of a call.
std::vector<Sequence> check_attention(const char* op, const AttentionInputs& in) {
  check_inputs(op, in.q, in.k, in.v, in.beta);
  check(in.window >= 0, op, "window is ", in.window, "; must be at least 0 (0: none)");
  check(in.query_offset >= 0, op, "query_offset is ", in.query_offset, "; must be at least 0");
  check(in.query_offset <= in.k.time - in.q.time, op, "query_offset is ", in.query_offset, " with ", in.q.time,
        " queries; must be at most ", in.k.time - in.q.time, ", as k has time ", in.k.time);
  check(in.cu_seqlens.empty() || in.k.time == in.q.time, op, "k has time ", in.k.time,
        "; packed sequences need q's time ", in.q.time);
  return check_sequences(op, in.q.batch, in.q.time, in.cu_seqlens);
}

template <class T>
Rows<T> head_rows(const View<T>& view, const Sequence& sequence, int64_t head) {
  return {view.row(sequence.batch, sequence.first, head), view.time_stride, view.head_stride};
}

Reading make_reading(const AttentionInputs& in, const Sequence& sequence, int64_t kv_head) {
  Reading reading;
  reading.group = in.q.heads / in.k.heads;
  reading.q = head_rows(in.q, sequence, kv_head * reading.group);
  reading.key_dim = in.q.dim;
  reading.value_dim = in.v.dim;
  reading.beta = in.beta.data() + kv_head * reading.group;
  const bool packed = !in.cu_seqlens.empty();
  reading.window = {.keys = in.k.row(sequence.batch, sequence.first, kv_head),
                    .values = in.v.row(sequence.batch, sequence.first, kv_head),
                    .key_stride = in.k.time_stride,
                    .value_stride = in.v.time_stride,
                    .count = packed ? sequence.length : in.k.time};
  reading.first_last = in.query_offset;
  if (in.window > 0) reading.span = in.window;
  return reading;
}

struct ForwardTask {
  Sequence sequence;
  int64_t kv_head, first_row, rows;
};

}  // namespace

void attention_forward(const AttentionInputs& in, const AttentionOutputs& out) {
  constexpr const char* op = "attention";
  const std::vector<Sequence> sequences = check_attention(op, in);
  check_shape(op, "o", out.o, in.q.batch, in.q.time, in.q.heads, in.v.dim);
  check_shape(op, "lse", out.lse, in.q.batch, in.q.time, in.q.heads, 1, true);

  const int64_t group = in.q.heads / in.k.heads;
  std::vector<ForwardTask> tasks;
  for (const Sequence& sequence : sequences) {
    const int64_t rows = sequence.length * group;
    for (int64_t head = 0; head < in.k.heads; ++head) {
      for (int64_t first = 0; first < rows; first += kBlockRows) {
        tasks.push_back({sequence, head, first, std::min(kBlockRows, rows - first)});
      }
    }
  }
  // Late rows read more keys: the long tasks first.
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const ForwardTask& a, const ForwardTask& b) { return a.first_row > b.first_row; });
  const ReadKernels& kernels = read_kernels();
  const int threads = max_threads();
  std::vector<Workspace> workspaces(threads);
  parallel_for(static_cast<int64_t>(tasks.size()), threads, [&](int64_t i, int thread) {
    const ForwardTask& task = tasks[i];
    const Reading reading = make_reading(in, task.sequence, task.kv_head);
    ForwardBlock block;
    block.reading = &reading;
    block.first_row = task.first_row;
    block.rows = task.rows;
    block.o = head_rows(out.o, task.sequence, task.kv_head * group);
    if (out.lse.data != nullptr) block.lse = head_rows(out.lse, task.sequence, task.kv_head * group);
    kernels.forward(block, workspaces[thread]);
  });
}

namespace {

struct BackwardMemory {
  std::vector<Workspace> team;
  Buffer<float> d_k, d_v;
};

// One kv head of one sequence: query blocks in order, gradients of keys and values accumulated in padded rows.
void attention_backward_head(const AttentionInputs& in, const AttentionSaved& saved, const View<const float>& d_o,
                             const AttentionGradients& gradients, const Sequence& sequence, int64_t kv_head,
                             BackwardMemory& memory, double* d_beta) {
  const ReadKernels& kernels = read_kernels();
  const Reading reading = make_reading(in, sequence, kv_head);
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

void attention_backward(const AttentionInputs& in, const AttentionSaved& saved, View<const float> d_o,
                        const AttentionGradients& gradients) {
  constexpr const char* op = "attention_backward";
  const std::vector<Sequence> sequences = check_attention(op, in);
  const View<const float>&q = in.q, &k = in.k, &v = in.v;
  check_shape(op, "o", saved.o, q.batch, q.time, q.heads, v.dim);
  check_shape(op, "lse", saved.lse, q.batch, q.time, q.heads, 1);
  check_shape(op, "d_o", d_o, q.batch, q.time, q.heads, v.dim);
  check_shape(op, "d_q", gradients.d_q, q.batch, q.time, q.heads, q.dim);
  check_shape(op, "d_k", gradients.d_k, k.batch, k.time, k.heads, k.dim);
  check_shape(op, "d_v", gradients.d_v, v.batch, v.time, v.heads, v.dim);
  check(gradients.d_beta.size() == in.beta.size(), op, "d_beta has ", gradients.d_beta.size(), " elements; must be ",
        in.beta.size());

  const int64_t group = q.heads / k.heads;
  const int64_t tasks = static_cast<int64_t>(sequences.size()) * k.heads;
  std::vector<double> d_beta(sequences.size() * q.heads, 0.0);
  const int threads = max_threads();
  const bool inside = tasks < threads;  // the threads share each head's work
  std::vector<BackwardMemory> memory(inside ? 1 : threads);
  for (BackwardMemory& own : memory) own.team.resize(inside ? threads : 1);
  parallel_for(tasks, inside ? 1 : threads, [&](int64_t task, int thread) {
    const int64_t sequence = task / k.heads, kv_head = task % k.heads;
    attention_backward_head(in, saved, d_o, gradients, sequences[sequence], kv_head, memory[thread],
                            d_beta.data() + sequence * q.heads + kv_head * group);
  });
  for (int64_t h = 0; h < q.heads; ++h) {
    double sum = 0.0;
    for (size_t s = 0; s < sequences.size(); ++s) sum += d_beta[s * q.heads + h];
    gradients.d_beta[h] = static_cast<float>(sum);
  }
}

}  // namespace ovq::kernels
