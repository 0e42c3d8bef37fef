#include "ovq/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#ifdef OVQ_THREADS_STD
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace ovq::kernels {
namespace {

std::atomic<int> requested{0};

#ifdef OVQ_THREADS_STD
int default_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

template <class Work>
void run_team(int threads, const Work& work) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
}
#else
int default_threads() { return std::max(1, omp_get_max_threads()); }

template <class Work>
void run_team(int threads, const Work& work) {
#pragma omp parallel num_threads(threads)
  work(omp_get_thread_num());
}
#endif

}  // namespace

int max_threads() {
  static const int fallback = default_threads();
  const int threads = requested.load(std::memory_order_relaxed);
  return threads > 0 ? threads : fallback;
}

void set_threads(int threads) { requested.store(std::max(0, threads), std::memory_order_relaxed); }

namespace detail {

void run_parallel(int64_t count, int threads, ParallelBody body, void* context) {
  threads = static_cast<int>(std::min<int64_t>(threads, count));
  if (threads <= 1) {
    for (int64_t index = 0; index < count; ++index) body(context, index, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  run_team(threads, [&](int thread) {
    try {
      for (int64_t index = next++; index < count; index = next++) body(context, index, thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace detail
}  // namespace ovq::kernels
