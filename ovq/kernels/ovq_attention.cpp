#include "ovq/kernels/ovq_attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "ovq/kernels/ovq_run.h"
#include "ovq/kernels/parallel.h"
#include "ovq/kernels/read_kernels.h"

namespace ovq::kernels {
namespace {

using namespace detail;

constexpr const char* kOp = "ovq_attention";

struct ForwardMemory {
  std::vector<Workspace> team;
  std::unique_ptr<OvqState> scratch;  // where no states are given: one sequence, the heads of a group
  WriteScratch write;
  Buffer<int32_t> assignment;
};

// Attention of the `count` tokens just appended, and the search for their nearest centroids, on the team's threads.
void read_piece(const OvqRun& run, int64_t count, const Rows<float>& o, const Rows<float>& lse,
                std::span<Workspace> team) {
  const ReadKernels& kernels = read_kernels();
  const Reading reading = run.reading(count);
  const Dictionary& dictionary = run.dictionary();
  const int64_t rows = count * reading.group;
  const int64_t searched = dictionary.size > 0 ? count : 0;
  // Rows are independent: how they are cut decides nothing but the speed.
  const int64_t wanted = std::min<int64_t>(static_cast<int64_t>(team.size()), (rows + kPanel - 1) / kPanel);
  const int64_t blocks = std::max((rows + kBlockRows - 1) / kBlockRows, wanted);
  const int64_t block_rows = round_up((rows + blocks - 1) / blocks, kPanel);
  const int64_t block_keys = round_up((searched + blocks - 1) / blocks, kPanel);
  parallel_for(blocks, static_cast<int>(team.size()), [&](int64_t i, int thread) {
    ForwardBlock block;
    block.reading = &reading;
    block.first_row = std::min(rows, i * block_rows);
    block.rows = std::min(block_rows, rows - block.first_row);
    block.o = o;
    block.lse = lse;
    const int64_t first_key = std::min(searched, i * block_keys);
    block.search_count = std::min(block_keys, searched - first_key);
    // With rope the searched keys are those of the previous chunk; both lie first behind the centroids.
    const int64_t row = run.chunk_row() + first_key;
    block.search = dictionary.key(dictionary.size + row);
    block.search_stride = dictionary.rows.key_stride;
    block.best_similarity = dictionary.rows.best_similarity + row;
    block.best_centroid = dictionary.rows.best_centroid + row;
    kernels.forward(block, team[thread]);
  });
}

// The next piece of one head, at most to the end of its chunk.
void forward_piece(const OvqInputs& in, const OvqOutputs& out, const OvqSequence& sequence, int64_t kv_head,
                   std::span<const int32_t> forced, OvqRun& run, ForwardMemory& memory) {
  const int64_t chunk = in.options.chunk, group = in.q.heads / in.k.heads;
  const int64_t count = run.piece();
  run.append(count);
  const int64_t first = sequence.tokens.first + run.position() - sequence.position;
  const auto rows_of = [&](const View<float>& view) {
    return Rows<float>{view.row(sequence.tokens.batch, first, kv_head * group), view.time_stride, view.head_stride};
  };
  read_piece(run, count, rows_of(out.o), out.lse.data == nullptr ? Rows<float>{} : rows_of(out.lse), memory.team);
  if (!run.advance(count)) return;

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

}  // namespace

int64_t ovq_assignment_count(const OvqInputs& inputs, std::span<const OvqState> states) {
  int64_t count = 0;
  for (const OvqSequence& sequence : check_ovq(kOp, inputs, states)) {
    count += (sequence.pending + sequence.tokens.length) * inputs.k.heads;
  }
  return count;
}

void ovq_attention_forward(const OvqInputs& in, const OvqOutputs& out, std::span<OvqState> states,
                           std::span<const int32_t> forced) {
  const std::vector<OvqSequence> sequences = check_ovq(kOp, in, states);
  const int64_t assignments = ovq_assignment_count(in, states);
  check_shape(kOp, "o", out.o, in.q.batch, in.q.time, in.q.heads, in.v.dim);
  check_shape(kOp, "lse", out.lse, in.q.batch, in.q.time, in.q.heads, 1, true);
  check(out.assignments.empty() || static_cast<int64_t>(out.assignments.size()) == assignments, kOp, "assignments has ",
        out.assignments.size(), " elements; must be ", assignments);
  check(forced.empty() || static_cast<int64_t>(forced.size()) == assignments, kOp, "forced assignments has ",
        forced.size(), " elements; must be ", assignments);
  int64_t longest = 0;
  for (const OvqSequence& sequence : sequences) {
    longest = std::max(longest, sequence.tokens.length);
    for (int64_t head = 0; head < in.k.heads && !forced.empty(); ++head)
      check_assignments(kOp, in, sequence, head, forced);
  }

  const std::shared_ptr<const RotaryTable> rotary = make_rotary(in, sequences);
  const HeadGroups groups(static_cast<int64_t>(sequences.size()), in.k.heads, max_threads());
  std::vector<ForwardMemory> memory(groups.threads);
  for (ForwardMemory& own : memory) {
    own.team.resize(groups.team);
    if (!states.empty()) continue;
    own.scratch = std::make_unique<OvqState>(OvqShape{1, groups.heads, in.k.dim, in.v.dim}, in.options);
    own.scratch->reserve(longest);
  }
  // Nothing can fail beyond this point but an allocation of scratch memory.
  for (OvqState& state : states) state.set_centroids(in.options.centroids);
  for (const OvqSequence& sequence : sequences) {
    if (sequence.state >= 0) states[sequence.state].reserve(sequence.tokens.length);
  }
  std::fill(out.assignments.begin(), out.assignments.end(), kUnassigned);

  parallel_for(groups.count, groups.threads, [&](int64_t group, int thread) {
    const OvqSequence& sequence = sequences[groups.sequence(group)];
    const int64_t first_head = groups.first_head(group), last_head = groups.last_head(group);
    ForwardMemory& own = memory[thread];
    std::vector<OvqRun> runs;
    for (int64_t head = first_head; head < last_head; ++head) {
      const OvqHead rows = sequence.state < 0
                               ? own.scratch->head(0, head - first_head)
                               : states[sequence.state].head(in.cu_seqlens.empty() ? sequence.tokens.batch : 0, head);
      runs.emplace_back(in, sequence, head, rows, rotary.get());
    }
    while (runs.front().position() < runs.front().end()) {
      for (int64_t head = first_head; head < last_head; ++head) {
        forward_piece(in, out, sequence, head, forced, runs[head - first_head], own);
      }
    }
  });
  for (size_t i = 0; i < states.size(); ++i) {
    states[i].advance(in.cu_seqlens.empty() ? in.q.time : sequences[i].tokens.length);
  }
}

}  // namespace ovq::kernels
