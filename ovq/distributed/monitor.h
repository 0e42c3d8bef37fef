// What a rank knows of the others while it waits for them. A thread, the only one to use the store once the group
// stands: a store that does not answer stops the thread, never an operation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ovq/distributed/place.h"

namespace ovq::distributed {

// The store, as far as it is needed here. Every call may throw or never return.
struct Store {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;                                  // empty: there is none
  std::function<std::string(const std::string& key, const std::string& value)> set_first;  // what the first one set
};

// Who is to blame if the store is lost; `first` names rank 0.
std::string store_holder(const Place& place, const std::string& first);

inline constexpr const char* kVerdictKey = "verdict";

class Monitor {
 public:
  using Clock = std::chrono::steady_clock;

  Monitor(Store store, const Place& place, std::chrono::milliseconds timeout);
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor();

  void count_operation();

  // After an operation failed with `error`: which rank it was, as all will say it.
  std::string verdict(const std::string& error);
  // Says why this rank ends, unless something was said already; gives up after a while.
  void say(const std::string& reason);

 private:
  struct Rank {
    std::string beat, host;
    int64_t operations = 0;
    Clock::time_point heard;
  };

  void run();
  // Whoever holds the store stays until the others have read what was said in it.
  void linger(std::unique_lock<std::mutex>& lock);
  void look();  // one round: beats, and what was said
  std::string finding(const std::string& error) const;
  std::string name(size_t rank) const;  // "rank 1 (host)"

  Store store_;
  Place place_;
  std::chrono::milliseconds timeout_, interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  Clock::time_point looked_;  // when the last round ended
  std::string lost_;          // why the store is lost; empty: it is not
  std::string said_;          // by the first that said something
  std::optional<std::string> to_say_;
  int64_t operations_ = 0;
  bool hurry_ = false;  // somebody waits for what the next rounds find
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ovq::distributed
