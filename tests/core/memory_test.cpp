// Memory of forward and backward beyond inputs and outputs: linear in T and at most the size of q, k, v and o, plus one
// dictionary and its gradient per head, for any N. Counts both buffers and operator new.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/core/buffer.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/backward_fixtures.h"
#include "tests/ovq_attention/fixtures.h"

namespace {

std::atomic<int64_t> new_current{0}, new_peak{0};

void* counted(void* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  const int64_t now = new_current += static_cast<int64_t>(malloc_usable_size(pointer));
  int64_t peak = new_peak;
  while (now > peak && !new_peak.compare_exchange_weak(peak, now)) {
  }
  return pointer;
}

void uncounted(void* pointer) noexcept {
  if (pointer != nullptr) new_current -= static_cast<int64_t>(malloc_usable_size(pointer));
  std::free(pointer);
}

void* aligned(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new[](std::size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return aligned(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return aligned(bytes, alignment); }
void operator delete(void* pointer) noexcept { uncounted(pointer); }
void operator delete[](void* pointer) noexcept { uncounted(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { uncounted(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { uncounted(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { uncounted(pointer); }
void operator delete[](void* pointer, std::align_val_t) noexcept { uncounted(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { uncounted(pointer); }
void operator delete[](void* pointer, std::size_t, std::align_val_t) noexcept { uncounted(pointer); }

namespace ovq::kernels::test {
namespace {

// The peak memory of `call`: buffers and, counted separately, operator new.
template <class Call>
int64_t peak_bytes(Call&& call) {
  reset_peak_memory();
  const int64_t buffers_before = memory_use().current, new_before = new_current;
  new_peak = new_before;
  call();
  return memory_use().peak - buffers_before + new_peak - new_before;
}

TEST(Memory, CountersCount) {
  EXPECT_GE(peak_bytes([] { std::vector<char> bytes(1 << 20); }), 1 << 20);
  EXPECT_GE(peak_bytes([] { Buffer<char> bytes(1 << 20); }), 1 << 20);
  EXPECT_LE(peak_bytes([] { Buffer<char> bytes(1 << 20); }), (1 << 20) + 4096) << "counted twice";
}

struct Footprint {
  int64_t forward = 0, backward = 0;
  int64_t tensors = 0;       // bytes of q, k, v and o
  int64_t dictionaries = 0;  // bytes of one dictionary per head, counts included
};

Footprint measure(const OvqCase& c, bool with_states) {
  const OvqProblem problem(c);
  const OvqInputs inputs = problem.inputs();
  const int64_t query_rows = c.batch * c.tokens * c.query_heads, kv_rows = c.batch * c.tokens * c.kv_heads;
  const Tensor o({c.batch, c.tokens, c.query_heads, c.value_dim}), lse({c.batch, c.tokens, c.query_heads, 1});
  const Tensor d_q({c.batch, c.tokens, c.query_heads, c.key_dim}), d_k({c.batch, c.tokens, c.kv_heads, c.key_dim});
  const Tensor d_v({c.batch, c.tokens, c.kv_heads, c.value_dim});
  std::vector<float> d_beta(c.query_heads);
  std::vector<int32_t> assignments(ovq_assignment_count(inputs));
  std::vector<OvqState> states = with_states ? problem.states() : std::vector<OvqState>();
  const std::vector<OvqState> initial = states;
  std::vector<OvqStateGradients<float>> d_initial(initial.size());

  Footprint footprint;
  footprint.forward = peak_bytes([&] { ovq_attention_forward(inputs, {o.view(), lse.view(), assignments}, states); });
  footprint.backward = peak_bytes([&] {
    ovq_attention_backward(inputs, {o.view(), lse.view(), assignments, initial}, {o.view(), {}},
                           {d_q.view(), d_k.view(), d_v.view(), d_beta, d_initial});
  });
  footprint.tensors = 4 * (query_rows * (c.key_dim + c.value_dim) + kv_rows * (c.key_dim + c.value_dim));
  const int64_t size = target_size(c.options, c.tokens / c.options.chunk * c.options.chunk);
  footprint.dictionaries = c.batch * c.kv_heads * (size + c.options.chunk) * (4 * (c.key_dim + c.value_dim) + 8 + 4);
  return footprint;
}

constexpr int64_t kScratch = int64_t{512} << 10;  // panels and the like of all threads, whatever T and N

TEST(Memory, ForwardAndBackwardAreLinearInTimeWhateverN) {
#ifdef __SANITIZE_ADDRESS__  // twenty times slower, and one length is enough
  const std::vector<int64_t> lengths = {4096};
#else
  const std::vector<int64_t> lengths = {4096, 8192, 16384};
#endif
  for (const bool with_states : {false, true}) {
    for (const int64_t centroids : {64, 8192}) {
      for (const int64_t tokens : lengths) {
        const OvqCase c{
            .tokens = tokens, .query_heads = 2, .kv_heads = 2, .options = {.chunk = 128, .centroids = centroids}};
        SCOPED_TRACE(testing::Message() << c << ", states " << with_states);
        const Footprint footprint = measure(c, with_states);
        EXPECT_LE(footprint.forward, footprint.dictionaries + kScratch);
        EXPECT_LE(footprint.backward, footprint.tensors + 2 * footprint.dictionaries);
        RecordProperty("forward", std::to_string(footprint.forward));
        RecordProperty("backward", std::to_string(footprint.backward));
      }
    }
  }
}

TEST(Memory, MoreThreadsThanHeadsTakeNoMoreDictionaries) {
  const OvqCase c{.tokens = 4096, .options = {.chunk = 128, .centroids = 8192}};
  set_threads(5);
  const Footprint footprint = measure(c, false);
  set_threads(0);
  EXPECT_LE(footprint.forward, footprint.dictionaries + 4 * kScratch);
  EXPECT_LE(footprint.backward, footprint.tensors + 2 * footprint.dictionaries + 4 * kScratch);
}

TEST(Memory, AStepAllocatesNothingInProportionToTheDictionary) {
  const OvqProblem problem({.tokens = 4200,
                            .query_heads = 2,
                            .kv_heads = 2,
                            .options = {.chunk = 128, .centroids = 2048, .growth = Growth::all}});
  std::vector<OvqState> states = problem.states();
  const Tensor o({1, 4200, 2, 16});
  ovq_attention_forward(problem.inputs(0, 4100), {.o = o.slice(0, 4100), .lse = {}, .assignments = {}}, states);
  int64_t largest = 0;
  for (int64_t t = 4100; t < 4200; ++t) {
    largest = std::max(largest, peak_bytes([&] {
                         ovq_attention_forward(problem.inputs(t, 1), {.o = o.slice(t, 1), .lse = {}, .assignments = {}},
                                               states);
                       }));
  }
  EXPECT_LE(largest, kScratch);
}

// A short file with many rows in its header: memory grows only with the bytes read.
TEST(Memory, ReadingAHostileStateAllocatesLittle) {
  const OvqProblem problem({.tokens = 27, .key_dim = 2, .value_dim = 2, .options = {.chunk = 8, .centroids = 10}});
  std::vector<OvqState> states = problem.states();
  run_forward(problem.inputs(), states);
  std::string bytes = bytes_of(states[0]);
  const int64_t position = (int64_t{1} << 30) + 3, size = int64_t{1} << 29;
  std::memcpy(bytes.data() + 124, &position, sizeof(position));
  std::memcpy(bytes.data() + 132, &size, sizeof(size));
  const int64_t peak = peak_bytes([&] {
    std::istringstream in(bytes);
    EXPECT_THROW(OvqState::read(in), std::runtime_error);
  });
  EXPECT_LE(peak, int64_t{4} << 20);
}

}  // namespace
}  // namespace ovq::kernels::test
