// Communication between processes that compute together, with failure detection. Based on c10d with Gloo; neither
// appears in this interface.
//
// All ranks must begin the same operations in the same order. If a rank ends, hangs or cannot be reached, the
// operations of the others throw RankFailure, which names the rank, no later than the time-out. Failures are detected
// by heartbeats: every rank increments a number in the store and publishes how many operations it has begun.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/distributed/rendezvous.h"

namespace ovq::distributed {

// Names the failed rank. The group is unusable afterwards and cannot be closed properly; the process should end.
struct RankFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Monitor;

class ProcessGroup {
 public:
  using Duration = std::chrono::milliseconds;

  // Returns once all ranks have arrived; RankFailure names those missing at the time-out.
  ProcessGroup(const Rendezvous& rendezvous, Duration timeout);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  ~ProcessGroup();

  int64_t rank() const { return rendezvous_.rank; }
  int64_t ranks() const { return rendezvous_.ranks; }

  // An asynchronous operation.
  class Pending {
   public:
    void wait();  // blocks until it is done

   private:
    friend class ProcessGroup;
    struct Work;
    ProcessGroup* group_ = nullptr;
    std::shared_ptr<Work> work_;
  };

  // x <- the sum over ranks of x, bit for bit the same on all of them. Tensors must be contiguous and on the CPU, and
  // must not be touched until the operation is done.
  Pending begin_sum(const at::Tensor& x);
  void sum(const at::Tensor& x) { begin_sum(x).wait(); }
  // x <- that of rank `from`
  Pending begin_broadcast(const at::Tensor& x, int64_t from);
  void broadcast(const at::Tensor& x, int64_t from) { begin_broadcast(x, from).wait(); }
  std::string broadcast(const std::string& text, int64_t from);
  // Returns every rank's x on all ranks.
  std::vector<at::Tensor> gather(const at::Tensor& x);
  bool any(bool here);  // whether `here` is true on at least one rank

  // Publishes why this rank will end, so that the others report it. Never throws.
  void leave_with(const std::string& reason) noexcept;

 private:
  struct Impl;  // hides c10d

  Pending begun(std::shared_ptr<Pending::Work> work);

  Rendezvous rendezvous_;
  Duration timeout_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<Impl> impl_;
};

// Holds the store for the processes on this machine, and so outlives them.
class StoreServer {
 public:
  StoreServer();
  ~StoreServer();
  int port() const;
  // Publishes why the processes of this attempt end. The first reason, from here or from a rank, is kept.
  void say(int64_t attempt, const std::string& reason);
  std::string said(int64_t attempt) const;  // empty: nothing

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ovq::distributed
