// Threads: parallel_for itself, and equal results for any number of threads, bit for bit.
#include "ovq/core/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ovq/ops/attention/attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/backward_fixtures.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

class Threads : public testing::Test {
 protected:
  void TearDown() override { set_threads(0); }
};

TEST_F(Threads, SetThreads) {
  const int automatic = max_threads();
  EXPECT_GE(automatic, 1);
  set_threads(3);
  EXPECT_EQ(max_threads(), 3);
  set_threads(0);
  EXPECT_EQ(max_threads(), automatic);
}

TEST_F(Threads, EveryIndexOnce) {
  for (int64_t count : {0, 1, 2, 100}) {
    for (int threads : {1, 2, 3, 5}) {
      std::vector<std::atomic<int>> visits(count);
      std::atomic<bool> in_range{true};
      parallel_for(count, threads, [&](int64_t index, int thread) {
        if (index < 0 || index >= count || thread < 0 || thread >= threads) {
          in_range = false;
        } else {
          ++visits[index];
        }
      });
      for (const auto& visit : visits) EXPECT_EQ(visit, 1);
      EXPECT_TRUE(in_range);
    }
  }
}

TEST_F(Threads, ExceptionsAreRethrown) {
  for (int threads : {1, 2, 5}) {
    for (int64_t bad : {0, 17, 99}) {
      EXPECT_THROW(parallel_for(100, threads,
                                [&](int64_t index, int) {
                                  if (index == bad) throw std::domain_error("bad index");
                                }),
                   std::domain_error);
    }
    EXPECT_THROW(parallel_for(100, threads, [](int64_t, int) { throw std::domain_error("all"); }), std::domain_error);
  }
  int64_t sum = 0;
  parallel_for(10, 1, [&](int64_t index, int) { sum += index; });
  EXPECT_EQ(sum, 45);
}

TEST_F(Threads, NestedCallsStayOnTheirThread) {
  std::atomic<int> visits{0}, elsewhere{0};
  parallel_for(8, 4, [&](int64_t, int) {
    const std::thread::id outer = std::this_thread::get_id();
    parallel_for(10, 4, [&](int64_t, int thread) {
      ++visits;
      if (thread != 0 || std::this_thread::get_id() != outer) ++elsewhere;
    });
  });
  EXPECT_EQ(visits, 80);
  EXPECT_EQ(elsewhere, 0);
}

TEST_F(Threads, CallersAtTheSameTime) {
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) parallel_for(20, 3, [&](int64_t index, int) { sum += index; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 500 * 190);
}

// A thread that sleeps inside of its block stands for one whose core another process has.
TEST_F(Threads, TheOthersGoOnWhileOneIsHeldUp) {
  for (const int held : {0, 1}) {
    std::atomic<int> done{0};
    std::atomic<bool> finished_by_others{false}, once{false};
    parallel_for(50, 2, [&](int64_t, int thread) {
      // The other thread may not have begun yet: whoever is first waits for it at most a second.
      if (thread == held && !once.exchange(true)) {
        for (int i = 0; i < 1000 && done < 49; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        finished_by_others = done == 49;
      }
      ++done;
    });
    EXPECT_EQ(done, 50);
    EXPECT_TRUE(finished_by_others || !once);
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(Threads, WorkInAForkedProcess) {
  const auto work = [] {
    std::atomic<int64_t> sum{0};
    parallel_for(100, 3, [&](int64_t index, int) { sum += index; });
    return sum == 4950;
  };
  ASSERT_TRUE(work());
  const pid_t child = fork();
  if (child == 0) _exit(work() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

// All results of forward and backward in one list.
struct Everything {
  std::vector<float> values;
  std::vector<int32_t> assignments;
  std::string states;

  void add(const Tensor& tensor) { add(tensor.values()); }
  void add(const std::vector<float>& more) { values.insert(values.end(), more.begin(), more.end()); }
};

Everything run_ovq(const OvqProblem& problem) {
  std::vector<OvqState> states = problem.states();
  const OvqForward forward = run_forward(problem.inputs(), states);
  Everything everything;
  everything.add(forward.o);
  everything.add(forward.lse);
  everything.assignments = forward.assignments;
  for (const OvqState& state : states) everything.states += bytes_of(state);
  if (problem.dtype != StateDtype::float32) return everything;  // no gradients
  const OvqGradientTensors gradients = run_backward(
      problem.inputs(), forward, random_gradients(problem.inputs(), problem.states(), states, Layout::dense, 1));
  everything.add(gradients.d_q);
  everything.add(gradients.d_k);
  everything.add(gradients.d_v);
  everything.add(gradients.d_beta);
  if (problem.options.weighted) everything.add(gradients.d_weights);
  return everything;
}

void expect_same_bits_for_any_threads(const OvqCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const OvqProblem problem(c);
  set_threads(1);
  const Everything expected = run_ovq(problem);
  for (int threads : {2, 3, 5}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    set_threads(threads);
    const Everything actual = run_ovq(problem);
    EXPECT_TRUE(same_bits(actual.values, expected.values));
    EXPECT_TRUE(same_bits(actual.assignments, expected.assignments));
    EXPECT_EQ(actual.states, expected.states);
  }
}

void expect_same_bits_in_every_variant(int64_t heads) {
  for (const OvqOptions& options : option_variants(32, 100)) {
    for (const StateDtype dtype : kStateDtypes) {
      expect_same_bits_for_any_threads({.tokens = 200,
                                        .query_heads = 2 * heads,
                                        .kv_heads = heads,
                                        .key_dim = 20,
                                        .value_dim = 36,
                                        .options = options,
                                        .dtype = dtype});
    }
  }
}

TEST_F(Threads, OvqAttentionOfFewHeadsHasTheSameBits) {
  for (const int64_t heads : {1, 2, 4}) expect_same_bits_in_every_variant(heads);
}

TEST_F(Threads, OvqAttentionOfManyHeadsHasTheSameBits) { expect_same_bits_in_every_variant(7); }

TEST_F(Threads, OvqAttentionHasTheSameBitsInLongChunks) {
  expect_same_bits_for_any_threads({.tokens = 1200, .query_heads = 3, .options = {.chunk = 128, .centroids = 2000}});
  expect_same_bits_for_any_threads(
      {.tokens = 1200, .query_heads = 3, .options = {.chunk = 128, .centroids = 2000, .weighted = true}});
  expect_same_bits_for_any_threads({.batch = 3, .tokens = 600, .options = {.chunk = 256, .centroids = 400}});
  expect_same_bits_for_any_threads(
      {.tokens = 600, .query_heads = 2, .options = {.chunk = 64, .centroids = 400}, .cu_seqlens = {0, 10, 300, 600}});
}

TEST_F(Threads, AttentionHasTheSameBits) {
  for (const int64_t kv_heads : {1, 2, 5}) {
    for (const int64_t window : {0, 50}) {
      Random random(1);
      const int64_t time = 500, heads = 2 * kv_heads;
      const Tensor q = unit_tensor({1, time, heads, 20}, Layout::dense, random);
      const Tensor k = unit_tensor({1, time, kv_heads, 20}, Layout::dense, random);
      const Tensor v = random_tensor({1, time, kv_heads, 36}, Layout::dense, random);
      const Tensor d_o = random_tensor({1, time, heads, 36}, Layout::dense, random);
      const std::vector<float> beta(heads, 4.0f);
      const AttentionInputs inputs{.q = q.view(), .k = k.view(), .v = v.view(), .beta = beta, .window = window};
      std::vector<float> expected;
      for (int threads : {1, 2, 3, 5}) {
        set_threads(threads);
        const Tensor o({1, time, heads, 36}), lse({1, time, heads, 1});
        const Tensor d_q({1, time, heads, 20}), d_k({1, time, kv_heads, 20}), d_v({1, time, kv_heads, 36});
        std::vector<float> d_beta(heads);
        attention_forward(inputs, {o.view(), lse.view()});
        attention_backward(inputs, {o.view(), lse.view()}, d_o.view(), {d_q.view(), d_k.view(), d_v.view(), d_beta});
        Everything everything;
        for (const Tensor* tensor : {&o, &lse, &d_q, &d_k, &d_v}) everything.add(*tensor);
        everything.add(d_beta);
        if (threads == 1) expected = everything.values;
        EXPECT_TRUE(same_bits(everything.values, expected)) << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace ovq::kernels::test
