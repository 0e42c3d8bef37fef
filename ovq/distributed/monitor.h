// Failure detection: tracks whether the other ranks are alive. A thread of its own is the only user of the store once
// the group is set up, so that an unresponsive store blocks this thread and never an operation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ovq/distributed/rendezvous.h"

namespace ovq::distributed {

// The operations needed from the store. Each may throw or block forever.
struct Store {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;                                  // empty: no such key
  std::function<std::string(const std::string& key, const std::string& value)> set_first;  // returns the first value
};

// The process that is at fault if the store is lost; `first` names rank 0.
std::string store_holder(const Rendezvous& rendezvous, const std::string& first);

inline constexpr const char* kVerdictKey = "verdict";

class Monitor {
 public:
  using Clock = std::chrono::steady_clock;

  Monitor(Store store, const Rendezvous& rendezvous, std::chrono::milliseconds timeout);
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor();

  void count_operation();

  // Called after an operation failed with `error`: names the rank at fault, in the same words on every rank.
  std::string verdict(const std::string& error);
  // Publishes why this rank ends unless a reason was published already. Gives up after a while.
  void say(const std::string& reason);

 private:
  struct Rank {
    std::string beat, host;
    int64_t operations = 0;
    Clock::time_point heard;
  };

  void run();
  // Keeps the process that holds the store alive until the others have read the verdict.
  void linger(std::unique_lock<std::mutex>& lock);
  void look();  // one round: reads beats and verdict
  std::string finding(const std::string& error) const;
  std::string name(size_t rank) const;  // "rank 1 (host)"

  Store store_;
  Rendezvous rendezvous_;
  std::chrono::milliseconds timeout_, interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  Clock::time_point looked_;  // end of the last round
  std::string lost_;          // why the store is lost; empty: it works
  std::string said_;          // the first verdict that was published
  std::optional<std::string> to_say_;
  int64_t operations_ = 0;
  bool hurry_ = false;  // a caller waits for the next round
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ovq::distributed
