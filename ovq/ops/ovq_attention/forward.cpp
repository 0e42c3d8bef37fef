#include "ovq/ops/ovq_attention/ovq_attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/ovq_attention/run.h"

namespace ovq::kernels {
namespace {

using namespace detail;

constexpr const char* kForward = "ovq_attention";

struct ForwardMemory {
  std::vector<Workspace> team;
  std::unique_ptr<OvqState> scratch;  // used if no states are given
  WriteScratch write;
  Buffer<int32_t> assignment;
};

// Attention of the `count` tokens just appended and the search for their nearest centroids, on the team's threads.
void read_piece(const OvqRun& run, int64_t count, const Rows<float>& o, const Rows<float>& lse,
                std::span<const Upcoming> upcoming, std::span<Workspace> team) {
  const ReadKernels& kernels = read_kernels();
  const Reading reading = run.reading(count);
  const Dictionary& dictionary = run.dictionary();
  const int64_t rows = count * reading.group;
  const int64_t searched = dictionary.size > 0 ? count : 0;
  // Rows are independent, so the division into blocks affects only the speed.
  const int64_t panel = kernels.panel;
  const int64_t wanted = std::min<int64_t>(static_cast<int64_t>(team.size()), (rows + panel - 1) / panel);
  const int64_t blocks = std::max((rows + kBlockRows - 1) / kBlockRows, wanted);
  const int64_t block_rows = round_up((rows + blocks - 1) / blocks, panel);
  const int64_t block_keys = round_up((searched + blocks - 1) / blocks, panel);
  parallel_for(blocks, static_cast<int>(team.size()), [&](int64_t i, int thread) {
    ForwardBlock block;
    block.reading = &reading;
    block.first_row = std::min(rows, i * block_rows);
    block.rows = std::min(block_rows, rows - block.first_row);
    block.o = o;
    block.lse = lse;
    const int64_t first_key = std::min(searched, i * block_keys);
    block.search_count = std::min(block_keys, searched - first_key);
    // With rope the searched keys are those of the previous chunk. In both cases they come first after the centroids.
    const int64_t row = run.chunk_row() + first_key;
    block.search = dictionary.pending_key(row);
    block.search_stride = dictionary.rows.key_stride;
    block.best_similarity = dictionary.rows.best_similarity + row;
    block.best_centroid = dictionary.rows.best_centroid + row;
    block.upcoming = upcoming;
    kernels.forward(block, team[thread]);
  });
}

void forward_head(const OvqInputs& in, const OvqOutputs& out, const OvqSequence& sequence, int64_t kv_head,
                  const OvqHead& rows, const RotaryTable* rotary, std::span<const int32_t> forced,
                  ForwardMemory& memory) {
  OvqRun run(in, sequence, kv_head, rows, rotary);
  const int64_t chunk = in.options.chunk, group = in.q.heads / in.k.heads;
  while (run.position() < run.end()) {
    const int64_t count = run.piece();
    run.append(count);
    const int64_t first = sequence.tokens.first + run.position() - sequence.position;
    const Rows<float> o = {out.o.row(sequence.tokens.batch, first, kv_head * group), out.o.time_stride,
                           out.o.head_stride};
    Rows<float> lse;
    if (out.lse.data != nullptr) {
      lse = {out.lse.row(sequence.tokens.batch, first, kv_head * group), out.lse.time_stride, out.lse.head_stride};
    }
    const int64_t next = std::min(chunk, run.end() - run.position() - count);
    const auto rows_of = [&](const auto& view) {
      return upcoming(view, sequence.tokens.batch, first + count, next, kv_head, in.k.heads);
    };
    const Upcoming ahead[] = {rows_of(in.q), rows_of(in.k), rows_of(in.v), rows_of(out.o)};
    read_piece(run, count, o, lse, ahead, memory.team);
    if (!run.advance(count)) continue;

    int32_t* assignment = memory.assignment.ensure(chunk);
    const ChunkWrite write = run.next_write(assignment);
    const auto at = [&](int64_t p) {
      return sequence.assignments + sequence.assignment_row(write.chunk * chunk + p) * in.k.heads + kv_head;
    };
    if (forced.empty()) {
      choose_centroids(run.dictionary(), write, memory.write);
    } else {
      for (int64_t p = 0; p < chunk; ++p) assignment[p] = forced[at(p)];
    }
    if (!out.assignments.empty()) {
      for (int64_t p = 0; p < chunk; ++p) out.assignments[at(p)] = assignment[p];
    }
    run.write(write, memory.write, nullptr);
  }
}

}  // namespace

int64_t ovq_assignment_count(const OvqInputs& inputs, std::span<const OvqState> states) {
  return plan_ovq_attention(kForward, inputs, info_of(states)).assignments;
}

void ovq_attention_forward(const OvqInputs& in, const OvqOutputs& out, std::span<OvqState> states,
                           std::span<const int32_t> forced) {
  const OvqPlan plan = plan_ovq_attention(kForward, in, info_of(states));
  check_shape(kForward, "o", out.o, in.q.batch, in.q.time, in.q.heads, in.v.dim);
  check_shape(kForward, "lse", out.lse, in.q.batch, in.q.time, in.q.heads, 1, true);
  check(out.assignments.empty() || static_cast<int64_t>(out.assignments.size()) == plan.assignments, kForward,
        "assignments has ", out.assignments.size(), " elements; must be ", plan.assignments);
  check(forced.empty() || static_cast<int64_t>(forced.size()) == plan.assignments, kForward, "forced assignments has ",
        forced.size(), " elements; must be ", plan.assignments);
  for (const OvqSequence& sequence : plan.sequences) {
    for (int64_t head = 0; head < in.k.heads && !forced.empty(); ++head)
      check_assignments(kForward, in, sequence, head, forced);
  }
  ovq_attention_forward(plan, in, out, states, forced);
}

void ovq_attention_forward(const OvqPlan& plan, const OvqInputs& in, const OvqOutputs& out, std::span<OvqState> states,
                           std::span<const int32_t> forced) {
  check(plan.states == static_cast<int64_t>(states.size()), kForward, "the plan is for ", plan.states,
        " states; there are ", states.size());
  const std::vector<OvqSequence>& sequences = plan.sequences;
  int64_t longest = 0;
  for (const OvqSequence& sequence : sequences) longest = std::max(longest, sequence.tokens.length);
  const std::shared_ptr<const RotaryTable> rotary = make_rotary(in, sequences);
  const int64_t tasks = static_cast<int64_t>(sequences.size()) * in.k.heads;
  const int threads = max_threads();
  const bool inside = tasks < threads;  // the threads share each head's work
  std::vector<ForwardMemory> memory(inside ? 1 : threads);
  for (ForwardMemory& own : memory) {
    own.team.resize(inside ? threads : 1);
    if (!states.empty()) continue;
    own.scratch = std::make_unique<OvqState>(OvqShape{1, 1, in.k.dim, in.v.dim}, in.options, StateDtype::float32,
                                             Lifetime::scratch);
    own.scratch->reserve(longest);
  }
  // From here on only allocations of scratch memory can fail.
  for (OvqState& state : states) state.set_centroids(in.options.centroids);
  for (const OvqSequence& sequence : sequences) {
    if (sequence.state >= 0) states[sequence.state].reserve(sequence.tokens.length);
  }
  std::fill(out.assignments.begin(), out.assignments.end(), kUnassigned);

  parallel_for(tasks, inside ? 1 : threads, [&](int64_t task, int thread) {
    const OvqSequence& sequence = sequences[task / in.k.heads];
    const int64_t kv_head = task % in.k.heads;
    ForwardMemory& own = memory[thread];
    const OvqHead rows = sequence.state < 0
                             ? own.scratch->head(0, 0)
                             : states[sequence.state].head(in.cu_seqlens.empty() ? sequence.tokens.batch : 0, kv_head);
    forward_head(in, out, sequence, kv_head, rows, rotary.get(), forced, own);
  });
  for (size_t i = 0; i < states.size(); ++i) {
    states[i].advance(in.cu_seqlens.empty() ? in.q.time : sequences[i].tokens.length);
  }
}

}  // namespace ovq::kernels
