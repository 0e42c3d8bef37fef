// Memory of an evaluation far beyond the training length. Every allocation of the process is counted: this program
// defines malloc and its relatives in place of the C library's.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>

#include "ovq/models/inspect.h"
#include "ovq/train/evaluate.h"
#include "tests/train/runs.h"

namespace {

std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

void* counted(void* block) {
  if (block == nullptr) return nullptr;
  const int64_t now = live_bytes += static_cast<int64_t>(malloc_usable_size(block));
  for (int64_t peak = peak_bytes; now > peak && !peak_bytes.compare_exchange_weak(peak, now);) {
  }
  return block;
}

void forget(void* block) {
  if (block != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(block));
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) { return counted(__libc_malloc(bytes)); }
void* calloc(size_t count, size_t bytes) { return counted(__libc_calloc(count, bytes)); }
void* realloc(void* block, size_t bytes) {
  forget(block);
  return counted(__libc_realloc(block, bytes));
}
void free(void* block) {
  forget(block);
  __libc_free(block);
}
void* memalign(size_t alignment, size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(size_t alignment, size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = counted(__libc_memalign(alignment, bytes));
  return *block == nullptr ? ENOMEM : 0;
}
}

namespace ovq::train::test {
namespace {

struct Measured {
  int64_t peak = 0;         // above what was there before
  int64_t state_bytes = 0;  // of one sequence, at the end
};

Measured evaluated(models::LanguageModel& model, const tasks::Task& task, const EvaluateOptions& options) {
  const int64_t before = live_bytes;
  peak_bytes = before;
  const Evaluation evaluation = evaluate(model, task, options);
  return {peak_bytes - before, evaluation.state_bytes};
}

TEST(Memory, EvaluationStreams) {
  // One row, so that a state of inspect is the state of the evaluation.
  const EvaluateOptions piece{
      .length = 219, .rows = 1, .batch = 1, .piece = 256};  // with its queries, one piece of tokens
  EvaluateOptions longest = piece;
  longest.length = 16 * 128;
  for (const char* pattern : {"sw-ovq", "sw-nope", "gdn"}) {
    SCOPED_TRACE(pattern);
    RunOptions options;
    options.model = pattern;
    if (options.model == "sw-ovq") {  // a state that counts beside the activations
      options.model_options = {{"mixers", {{"ovq", {{"centroids", 512}}}}}};
    }
    options = resolved(options);
    const auto task = make_task(options);
    const auto config = model_config(options, task->vocab());
    const auto model = models::make_model(config, 0);
    ASSERT_EQ(task->row_length(piece.length, tasks::Split::test), piece.piece);
    evaluated(*model, *task, longest);  // allocates what is created once and kept
    const Measured one = evaluated(*model, *task, piece), all = evaluated(*model, *task, longest);

    const int64_t tokens = task->row_length(longest.length, tasks::Split::test);
    const int64_t predicted_state = models::inspect(config, {tokens}).contexts.front().state_bytes;
    EXPECT_NEAR(static_cast<double>(all.state_bytes), static_cast<double>(predicted_state), 0.1 * predicted_state);
    const int64_t activations = one.peak - one.state_bytes;
    const int64_t predicted = predicted_state + activations;
    std::printf("%s: peak %ld, predicted %ld = state %ld + activations %ld\n", pattern, all.peak, predicted,
                predicted_state, activations);
    // While a buffer of the state grows, the old one still exists: at most the keys or the values of one of two layers.
    const int64_t grown = predicted_state / 4;
    EXPECT_LE(all.peak, predicted + grown + predicted / 10);
    EXPECT_GE(all.peak, predicted - predicted / 10);
  }
}

}  // namespace
}  // namespace ovq::train::test
