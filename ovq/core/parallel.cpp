#include "ovq/core/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace ovq::kernels {
namespace {

std::atomic<int> requested{0};

int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    int threads = 0;
    if (std::from_chars(text, text + std::strlen(text), threads).ec == std::errc() && threads >= 1) return threads;
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The calls of one layer follow each other within microseconds: waking a sleeping thread for each would take longer
// than most of them. Longer waits sleep, because another process may need the core.
constexpr std::chrono::microseconds kSpin{50};

// Whether done() within kSpin.
template <class Done>
bool spin_until(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

thread_local bool inside = false;  // of a parallel call, where further ones stay on their thread

// Threads that take blocks of the calls of one caller at a time. The caller works, too: it never waits for a thread
// that has not begun, only for blocks in progress. So a core that another process keeps busy costs little more than its
// share.
class ThreadPool {
 public:
  // False, and nothing done, if another caller has the pool.
  bool run(int64_t count, int threads, detail::ParallelBody body, void* context) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const int helpers = std::min({threads - 1, grow(threads - 1), kMostHelpers});
    count_ = count;
    body_ = body;
    context_ = context;
    error_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    offer_.store(++call_ << kPlaceBits | helpers, std::memory_order_release);
    calls_.fetch_add(1);
    if (sleepers_.load() > 0) calls_.notify_all();
    work(0);
    const int begun = helpers - static_cast<int>(offer_.fetch_and(~kPlaces) & kPlaces);
    const auto finished = [&] { return finished_.load(std::memory_order_acquire) == begun; };
    if (!spin_until(finished)) {
      for (int now = finished_.load(); now != begun; now = finished_.load()) finished_.wait(now);
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

 private:
  // Helpers wanted, of at most this many.
  int grow(int wanted) {
    sigset_t all, before;  // signals are for the threads of the program
    sigfillset(&all);
    if (workers_ >= wanted) return workers_;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; workers_ < std::min(wanted, kMostHelpers); ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: the call goes on with those that are there.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return workers_;
  }

  [[noreturn]] void serve() {
    inside = true;
    while (true) {
      const uint32_t seen = calls_.load();
      if (const int thread = place()) {
        work(thread);
        finished_.fetch_add(1);
        finished_.notify_one();
      } else if (!spin_until([&] { return (offer_.load(std::memory_order_relaxed) & kPlaces) != 0; })) {
        ++sleepers_;
        calls_.wait(seen);
        --sleepers_;
      }
    }
  }

  // A number that no other thread of the call has, from 1 on; 0: there is nothing to do.
  int place() {
    uint64_t offer = offer_.load(std::memory_order_relaxed);
    while ((offer & kPlaces) != 0) {
      if (offer_.compare_exchange_weak(offer, offer - 1, std::memory_order_acquire)) {
        return static_cast<int>(offer & kPlaces);
      }
    }
    return 0;
  }

  void work(int thread) {
    try {
      for (int64_t index = next_++; index < count_; index = next_++) body_(context_, index, thread);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = count_;
    }
  }

  static constexpr int kPlaceBits = 16, kMostHelpers = (1 << kPlaceBits) - 1;
  static constexpr uint64_t kPlaces = kMostHelpers;

  std::mutex mutex_;  // of the caller
  int workers_ = 0;
  uint64_t call_ = 0;

  // The call. Written before it is offered, when no thread works; read by threads that have a place in it.
  int64_t count_ = 0;
  detail::ParallelBody body_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  std::mutex error_mutex_;

  alignas(64) std::atomic<uint64_t> offer_{0};  // number of the call, and places that are left in it
  std::atomic<uint32_t> calls_{0};              // what sleepers watch
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int64_t> next_{0};  // block
  alignas(64) std::atomic<int> finished_{0};  // threads that had a place
};

// Never destroyed: its threads may still look at it when the program ends. A forked process has none of the threads, so
// it begins with a new one.
ThreadPool*& thread_pool() {
  static ThreadPool* pool = [] {
    pthread_atfork(nullptr, nullptr, [] { kernels::thread_pool() = new ThreadPool; });
    return new ThreadPool;
  }();
  return pool;
}

void run_alone(int64_t count, detail::ParallelBody body, void* context) {
  for (int64_t index = 0; index < count; ++index) body(context, index, 0);
}

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
  if (threads <= 1 || inside) return run_alone(count, body, context);
  inside = true;
  struct Leave {
    ~Leave() { inside = false; }
  } leave;
  if (!thread_pool()->run(count, threads, body, context)) run_alone(count, body, context);
}

}  // namespace detail
}  // namespace ovq::kernels
