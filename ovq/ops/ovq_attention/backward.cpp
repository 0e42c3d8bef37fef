// Backward of OVQ-attention. Forward saves only its outputs, the log-sum-exp and the assignments. Backward first
// repeats the writes (no search, O(T d)) and logs the rows they overwrite. Then it visits the chunks in reverse order
// and undoes each write before it reads the chunk's queries.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/core/small_rows.h"
#include "ovq/ops/attention/backward_block.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/run.h"

namespace ovq::kernels {
namespace {

using namespace detail;

constexpr const char* kBackward = "ovq_attention_backward";

struct BackwardCall {
  const OvqInputs& in;
  const OvqSaved& saved;
  const OvqOutputGradients& outer;
  const OvqGradients& gradients;
  const RotaryTable* rotary;
};

struct BackwardMemory {
  std::vector<Workspace> team;
  std::optional<OvqState> scratch;
  UndoLog log;
  WriteScratch write;
  Buffer<int32_t> assignment;
  Buffer<float> d_keys{Lifetime::scratch}, d_values{Lifetime::scratch}, d_rotated{Lifetime::scratch};
  Buffer<float> d_log_counts, d_shrinkage;
  std::vector<TokenRow> tokens;  // of the chunk whose write is undone
};

template <class From, class To>
void copy_rows(const From& from, const To& to, int64_t rows, int64_t dim) {
  for (int64_t i = 0; i < rows; ++i) copy_row(from(i), dim, to(i));
}

// One kv head of one sequence.
class HeadBackward {
 public:
  HeadBackward(const BackwardCall& call, const OvqSequence& sequence, int64_t kv_head, BackwardMemory& memory)
      : call_(call),
        in_(call.in),
        sequence_(sequence),
        kv_head_(kv_head),
        state_batch_(in_.cu_seqlens.empty() ? sequence.tokens.batch : 0),
        memory_(memory),
        run_(in_, sequence, kv_head, prepare(call, sequence, kv_head, state_batch_, memory), call.rotary) {}

  void run(double* d_beta) {
    replay();
    load_final_gradients();
    const int64_t chunk = in_.options.chunk;
    const int64_t last = sequence_.tokens.length == 0 ? -1 : (run_.end() - 1) / chunk;
    for (int64_t c = last; c >= sequence_.position / chunk && c >= 0; --c) {
      const int64_t chunk_end = std::min((c + 1) * chunk, run_.end());
      const bool wrote = chunk_end == (c + 1) * chunk && (!in_.options.rope || c > 0);
      if (wrote) unwrite(c);
      run_.rewind(c, chunk_end - c * chunk, initial(), state_batch_);
      read_backward(chunk_end - run_.position(), d_beta);
      store_token_gradients(c, chunk_end);
    }
    store_initial_gradients();
  }

 private:
  const OvqState* initial() const { return sequence_.state < 0 ? nullptr : &call_.saved.initial[sequence_.state]; }

  // A separate dictionary, in the state before the call, on which to repeat the writes.
  static OvqHead prepare(const BackwardCall& call, const OvqSequence& sequence, int64_t kv_head, int64_t batch,
                         BackwardMemory& memory) {
    if (sequence.state >= 0) {
      memory.scratch = call.saved.initial[sequence.state].copy_head(batch, kv_head);
      memory.scratch->set_centroids(call.in.options.centroids);
    } else if (!memory.scratch) {
      memory.scratch.emplace(OvqShape{1, 1, call.in.k.dim, call.in.v.dim}, call.in.options, StateDtype::float32,
                             Lifetime::scratch);
    } else {
      memory.scratch->reset();
    }
    memory.scratch->reserve(sequence.tokens.length);
    return memory.scratch->head(0, 0);
  }

  ChunkWrite load_write(const ChunkWrite& write) const {
    for (int64_t p = 0; p < in_.options.chunk; ++p) {
      const int64_t row = sequence_.assignment_row(write.chunk * in_.options.chunk + p);
      write.assignment[p] = call_.saved.assignments[sequence_.assignments + row * in_.k.heads + kv_head_];
    }
    return write;
  }

  void replay() {
    const OvqOptions& options = in_.options;
    const int64_t size_final = size_after(options, sequence_.size, sequence_.position, sequence_.tokens.length);
    const int64_t lag = options.rope ? options.chunk : 0;
    const int64_t committed = std::max<int64_t>(0, run_.end() / options.chunk * options.chunk - lag) -
                              std::max<int64_t>(0, sequence_.position / options.chunk * options.chunk - lag);
    const int64_t founded = size_final - sequence_.size;
    memory_.log.reserve(committed - founded, committed, run_.dictionary(), options);
    int32_t* assignment = memory_.assignment.ensure(options.chunk);
    while (run_.position() < run_.end()) {
      const int64_t count = run_.piece();
      run_.append(count);
      if (run_.advance(count)) run_.write(load_write(run_.next_write(assignment)), memory_.write, &memory_.log);
    }
    // The largest number of gradient rows: centroids, then the window.
    const int64_t window = std::min((options.rope ? 2 : 1) * options.chunk, run_.end());
    const int64_t rows = size_final + window;
    gradient_ = {memory_.d_keys.ensure(rows * padded(in_.k.dim)), memory_.d_values.ensure(rows * padded(in_.v.dim)),
                 padded(in_.k.dim), padded(in_.v.dim)};
    std::fill_n(gradient_.keys, rows * gradient_.key_stride, 0.0f);
    std::fill_n(gradient_.values, rows * gradient_.value_stride, 0.0f);
    if (options.rope) memory_.d_rotated.ensure(window * gradient_.key_stride);
    if (options.weighted) {
      gradient_.log_counts = memory_.d_log_counts.ensure(rows);
      std::fill_n(gradient_.log_counts, rows, 0.0f);
    }
    if (options.value_norms) {
      gradient_.shrinkage = memory_.d_shrinkage.ensure(size_final);
      std::fill_n(gradient_.shrinkage, size_final, 0.0f);
    }
  }

  float* key_gradient(int64_t row) const { return gradient_.keys + row * gradient_.key_stride; }
  float* value_gradient(int64_t row) const { return gradient_.values + row * gradient_.value_stride; }
  float weight(int64_t row) const { return run_.dictionary().rows.weights[row]; }

  void load_final_gradients() {
    if (sequence_.state < 0 || call_.outer.d_final.empty()) return;
    const OvqStateGradients<const float>& d_final = call_.outer.d_final[sequence_.state];
    const int64_t size = run_.dictionary().size;
    const auto load = [&](const View<const float>& from, int64_t first, auto row, int64_t dim) {
      if (from.data == nullptr) return;
      copy_rows([&](int64_t i) { return from.row(state_batch_, i, kv_head_); },
                [&](int64_t i) { return (this->*row)(first + i); }, from.time, dim);
    };
    load(d_final.keys, 0, &HeadBackward::key_gradient, in_.k.dim);
    load(d_final.values, 0, &HeadBackward::value_gradient, in_.v.dim);
    load(d_final.pending_keys, size, &HeadBackward::key_gradient, in_.k.dim);
    load(d_final.pending_values, size, &HeadBackward::value_gradient, in_.v.dim);
    const auto load_weights = [&](const View<const float>& from, int64_t first) {
      for (int64_t i = 0; from.data != nullptr && i < from.time; ++i) {
        gradient_.log_counts[first + i] = weight(first + i) * *from.row(state_batch_, i, kv_head_);
      }
    };
    load_weights(d_final.counts, 0);
    load_weights(d_final.pending_weights, size);
    for (int64_t i = 0; d_final.shrinkage.data != nullptr && i < size; ++i) {
      gradient_.shrinkage[i] = *d_final.shrinkage.row(state_batch_, i, kv_head_);
    }
  }

  // Undoes the write that followed chunk c.
  void unwrite(int64_t c) {
    const OvqOptions& options = in_.options;
    const int64_t committed = (options.rope ? c : c + 1) * options.chunk;
    const int64_t written = committed / options.chunk - 1;
    ChunkWrite write = {.options = &options,
                        .kv_head = kv_head_,
                        .chunk = written,
                        .carried = options.rope ? options.chunk : 0,
                        .assignment = memory_.assignment.data()};
    load_write(write);
    write.new_count =
        std::count_if(write.assignment, write.assignment + options.chunk, [](int32_t a) { return a < 0; });
    if (options.weighted || options.value_norms) {
      memory_.tokens.clear();
      for (int64_t p = 0; p < options.chunk; ++p) {
        memory_.tokens.push_back(run_.token(written * options.chunk + p, initial(), state_batch_));
      }
      write.tokens = memory_.tokens.data();
    }
    run_.unwrite(write, gradient_, memory_.log, memory_.write);
  }

  void read_backward(int64_t count, double* d_beta) {
    const Reading reading = run_.reading(count);
    const int64_t size = run_.dictionary().size;
    const int64_t first = sequence_.tokens.first + run_.position() - sequence_.position;
    const int64_t batch = sequence_.tokens.batch, head = kv_head_ * reading.group;
    const auto rows_of = [&](const auto& view) {
      return Rows<std::remove_reference_t<decltype(*view.data)>>{view.row(batch, first, head), view.time_stride,
                                                                 view.head_stride};
    };
    BackwardBlock block;
    block.reading = &reading;
    block.o = rows_of(call_.saved.o);
    block.lse = rows_of(call_.saved.lse);
    block.d_o = rows_of(call_.outer.d_o);
    block.d_q = rows_of(call_.gradients.d_q);
    block.d_beta = d_beta;
    block.d_dictionary = {gradient_.keys, gradient_.values, gradient_.key_stride, gradient_.value_stride};
    block.d_window = {key_gradient(size), value_gradient(size), gradient_.key_stride, gradient_.value_stride};
    if (in_.options.weighted) {
      block.d_dictionary.log_counts = gradient_.log_counts;
      block.d_window.log_counts = gradient_.log_counts + size;
    }
    // The memory that the previous chunk reads and writes.
    const int64_t ahead = std::min(in_.options.chunk, run_.position() - sequence_.position);
    const auto before = [&](const auto& view) {
      return upcoming(view, batch, first - ahead, ahead, kv_head_, in_.k.heads);
    };
    const Upcoming ahead_rows[] = {
        before(in_.q), before(call_.saved.o),       before(call_.outer.d_o),     before(in_.k),
        before(in_.v), before(call_.gradients.d_q), before(call_.gradients.d_k), before(call_.gradients.d_v)};
    block.upcoming = ahead_rows;
    const bool rope = in_.options.rope;
    if (rope) {
      block.d_window.keys = memory_.d_rotated.data();
      std::fill_n(block.d_window.keys, reading.window.count * gradient_.key_stride, 0.0f);
    }
    const int64_t rows = count * reading.group;
    for (block.first_row = 0; block.first_row < rows; block.first_row += kBlockRows) {
      block.rows = std::min(kBlockRows, rows - block.first_row);
      backward_block(read_kernels(), block, memory_.team);
    }
    if (rope) add_rotated_gradients(reading.window.count);
  }

  // d_k <- d_k + the rotated keys' gradient, rotated back
  void add_rotated_gradients(int64_t window) {
    const int64_t dim = in_.k.dim;
    std::vector<float> unrotated(dim);
    for (int64_t i = 0; i < window; ++i) {
      rotate(memory_.d_rotated.data() + i * gradient_.key_stride, run_.rotary_row(i), dim, -1.0f, unrotated.data());
      float* to = key_gradient(run_.dictionary().size + i);
      for (int64_t j = 0; j < dim; ++j) to[j] += unrotated[j];
    }
  }

  // The gradients of chunk c's tokens are complete: writes out those of this call and clears their rows.
  void store_token_gradients(int64_t c, int64_t chunk_end) {
    const int64_t first_row = run_.dictionary().size + run_.previous();
    const int64_t chunk_start = c * in_.options.chunk;
    for (int64_t token = std::max(chunk_start, sequence_.position); token < chunk_end; ++token) {
      const int64_t row = first_row + token - chunk_start;
      const int64_t time = sequence_.tokens.first + token - sequence_.position;
      copy_row(key_gradient(row), in_.k.dim, call_.gradients.d_k.row(sequence_.tokens.batch, time, kv_head_));
      copy_row(value_gradient(row), in_.v.dim, call_.gradients.d_v.row(sequence_.tokens.batch, time, kv_head_));
      if (!in_.options.weighted) continue;
      *call_.gradients.d_weights.row(sequence_.tokens.batch, time, kv_head_) =
          gradient_.log_counts[row] / *in_.weights.row(sequence_.tokens.batch, time, kv_head_);
    }
    if (chunk_start <= sequence_.position)
      return;  // in the first chunk, the remaining rows belong to the incoming state
    const int64_t rows = chunk_end - chunk_start;
    std::fill_n(key_gradient(first_row), rows * gradient_.key_stride, 0.0f);
    std::fill_n(value_gradient(first_row), rows * gradient_.value_stride, 0.0f);
    if (in_.options.weighted) std::fill_n(gradient_.log_counts + first_row, rows, 0.0f);
  }

  void store_initial_gradients() {
    if (sequence_.state < 0 || call_.gradients.d_initial.empty()) return;
    const OvqStateGradients<float>& d_initial = call_.gradients.d_initial[sequence_.state];
    const auto store = [&](const View<float>& to, int64_t first, auto row, int64_t dim) {
      if (to.data == nullptr) return;
      copy_rows([&](int64_t i) { return (this->*row)(first + i); },
                [&](int64_t i) { return to.row(state_batch_, i, kv_head_); }, to.time, dim);
    };
    store(d_initial.keys, 0, &HeadBackward::key_gradient, in_.k.dim);
    store(d_initial.values, 0, &HeadBackward::value_gradient, in_.v.dim);
    store(d_initial.pending_keys, sequence_.size, &HeadBackward::key_gradient, in_.k.dim);
    store(d_initial.pending_values, sequence_.size, &HeadBackward::value_gradient, in_.v.dim);
    const auto store_weights = [&](const View<float>& to, int64_t first, const View<const float>& weights) {
      for (int64_t i = 0; to.data != nullptr && i < to.time; ++i) {
        *to.row(state_batch_, i, kv_head_) = gradient_.log_counts[first + i] / *weights.row(state_batch_, i, kv_head_);
      }
    };
    store_weights(d_initial.counts, 0, initial()->real_counts());
    store_weights(d_initial.pending_weights, sequence_.size, initial()->pending_weights());
    for (int64_t i = 0; d_initial.shrinkage.data != nullptr && i < sequence_.size; ++i) {
      *d_initial.shrinkage.row(state_batch_, i, kv_head_) = gradient_.shrinkage[i];
    }
  }

  const BackwardCall& call_;
  const OvqInputs& in_;
  const OvqSequence& sequence_;
  int64_t kv_head_;
  int64_t state_batch_;
  BackwardMemory& memory_;
  OvqRun run_;
  DictionaryGradient gradient_;
};

template <class T>
void check_state_gradients(const char* name, std::span<const OvqStateGradients<T>> gradients, const OvqInputs& in,
                           std::span<const OvqState> states, bool after) {
  if (gradients.empty()) return;
  check(gradients.size() == states.size(), kBackward, name, " has ", gradients.size(),
        " elements; must be one per state, ", states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    const OvqState& state = states[i];
    const int64_t tokens = !after ? 0 : in.cu_seqlens.empty() ? in.q.time : in.cu_seqlens[i + 1] - in.cu_seqlens[i];
    const int64_t size = size_after(in.options, state.size(), state.position(), tokens);
    const int64_t pending = pending_tokens(in.options, state.position() + tokens);
    const OvqShape& shape = state.shape();
    check_shape(kBackward, name, gradients[i].keys, shape.batch, size, shape.kv_heads, shape.key_dim, true);
    check_shape(kBackward, name, gradients[i].values, shape.batch, size, shape.kv_heads, shape.value_dim, true);
    check_shape(kBackward, name, gradients[i].pending_keys, shape.batch, pending, shape.kv_heads, shape.key_dim, true);
    check_shape(kBackward, name, gradients[i].pending_values, shape.batch, pending, shape.kv_heads, shape.value_dim,
                true);
    check(in.options.weighted || (gradients[i].counts.data == nullptr && gradients[i].pending_weights.data == nullptr),
          kBackward, name, " has gradients of counts; there are no weights");
    check_shape(kBackward, name, gradients[i].counts, shape.batch, size, shape.kv_heads, 1, true);
    check_shape(kBackward, name, gradients[i].pending_weights, shape.batch, pending, shape.kv_heads, 1, true);
    check(in.options.value_norms || gradients[i].shrinkage.data == nullptr, kBackward, name,
          " has gradients of shrinkage; there are no value_norms");
    check_shape(kBackward, name, gradients[i].shrinkage, shape.batch, size, shape.kv_heads, 1, true);
  }
}

}  // namespace

void ovq_attention_backward(const OvqInputs& in, const OvqSaved& saved, const OvqOutputGradients& outer,
                            const OvqGradients& gradients) {
  const OvqPlan plan = plan_ovq_attention(kBackward, in, info_of(saved.initial));
  check_shape(kBackward, "o", saved.o, in.q.batch, in.q.time, in.q.heads, in.v.dim);
  check_shape(kBackward, "lse", saved.lse, in.q.batch, in.q.time, in.q.heads, 1);
  check_shape(kBackward, "d_o", outer.d_o, in.q.batch, in.q.time, in.q.heads, in.v.dim);
  check_shape(kBackward, "d_q", gradients.d_q, in.q.batch, in.q.time, in.q.heads, in.q.dim);
  check_shape(kBackward, "d_k", gradients.d_k, in.k.batch, in.k.time, in.k.heads, in.k.dim);
  check_shape(kBackward, "d_v", gradients.d_v, in.v.batch, in.v.time, in.v.heads, in.v.dim);
  check(static_cast<int64_t>(saved.assignments.size()) == plan.assignments, kBackward, "assignments has ",
        saved.assignments.size(), " elements; must be ", plan.assignments);
  check(gradients.d_beta.size() == in.beta.size(), kBackward, "d_beta has ", gradients.d_beta.size(),
        " elements; must be ", in.beta.size());
  if (in.options.weighted) {
    check_shape(kBackward, "d_weights", gradients.d_weights, in.k.batch, in.k.time, in.k.heads, 1);
  }
  check_state_gradients("d_final", outer.d_final, in, saved.initial, true);
  check_state_gradients("d_initial", gradients.d_initial, in, saved.initial, false);
  for (const OvqSequence& sequence : plan.sequences) {
    for (int64_t head = 0; head < in.k.heads; ++head)
      check_assignments(kBackward, in, sequence, head, saved.assignments);
  }
  ovq_attention_backward(plan, in, saved, outer, gradients);
}

void ovq_attention_backward(const OvqPlan& plan, const OvqInputs& in, const OvqSaved& saved,
                            const OvqOutputGradients& outer, const OvqGradients& gradients) {
  check(plan.states == static_cast<int64_t>(saved.initial.size()), kBackward, "the plan is for ", plan.states,
        " states; there are ", saved.initial.size());
  for (size_t i = 0; i < saved.initial.size(); ++i) {
    check(saved.initial[i].dtype() == StateDtype::float32, kBackward, "states[", i, "] is stored as ",
          name_of(saved.initial[i].dtype()), ", which is for inference; must be float32");
  }
  const std::vector<OvqSequence>& sequences = plan.sequences;
  const std::shared_ptr<const RotaryTable> rotary = make_rotary(in, sequences);
  const BackwardCall call = {in, saved, outer, gradients, rotary.get()};
  const int64_t heads = in.k.heads, group = in.q.heads / heads;
  const int64_t tasks = static_cast<int64_t>(sequences.size()) * heads;
  std::vector<double> d_beta(sequences.size() * in.q.heads, 0.0);
  const int threads = max_threads();
  const bool inside = tasks < threads;  // the threads share each head's work
  std::vector<BackwardMemory> memory(inside ? 1 : threads);
  for (BackwardMemory& own : memory) own.team.resize(inside ? threads : 1);
  parallel_for(tasks, inside ? 1 : threads, [&](int64_t task, int thread) {
    const int64_t sequence = task / heads, kv_head = task % heads;
    HeadBackward(call, sequences[sequence], kv_head, memory[thread])
        .run(d_beta.data() + sequence * in.q.heads + kv_head * group);
  });
  for (int64_t h = 0; h < in.q.heads; ++h) {
    double sum = 0.0;
    for (size_t s = 0; s < sequences.size(); ++s) sum += d_beta[s * in.q.heads + h];
    gradients.d_beta[h] = static_cast<float>(sum);
  }
}

}  // namespace ovq::kernels
