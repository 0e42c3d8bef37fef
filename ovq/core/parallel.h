// The only threading layer of the kernels: one pool of threads that sleep between calls. Blocks are claimed one by one
// and the caller works, too, so that a thread whose core another process keeps busy does not hold up the call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace ovq::kernels {

// The number of threads that a kernel may use: set_threads(), else OMP_NUM_THREADS, else the cores of this process.
int max_threads();
void set_threads(int threads);  // 0: back to the default

namespace detail {
using ParallelBody = void (*)(void* context, int64_t index, int thread);
void run_parallel(int64_t count, int threads, ParallelBody body, void* context);
}  // namespace detail

// body(index, thread) for each index below count, in any order; thread < threads. The first exception is rethrown.
// Calls from inside of a body, and calls while another thread of the program has the pool, run on the thread that makes
// them.
template <class Body>
void parallel_for(int64_t count, int threads, Body&& body) {
  using Function = std::remove_reference_t<Body>;
  detail::run_parallel(
      count, threads,
      [](void* context, int64_t index, int thread) { (*static_cast<Function*>(context))(index, thread); }, &body);
}

// body(begin, end) for consecutive blocks of [0, count). `cost`: elements touched per index; little work stays on one
// thread.
template <class Body>
void parallel_blocks(int64_t count, int64_t block, int64_t cost, Body&& body) {
  constexpr int64_t kWorthThreads = 1 << 15;
  if (count <= block) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  parallel_for((count + block - 1) / block, count * cost < kWorthThreads ? 1 : max_threads(),
               [&](int64_t index, int) { body(index * block, std::min(count, (index + 1) * block)); });
}

}  // namespace ovq::kernels
