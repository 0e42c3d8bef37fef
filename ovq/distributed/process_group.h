// Several processes that compute together: what they exchange, and what happens when one of them ends. On c10d with
// Gloo; nothing of either shows here.
//
// All ranks must begin the same operations in the same order. A rank that ended, hangs or cannot be reached makes the
// others' operations throw RankFailure, which names it, at the latest after the time-out. They know it from beats:
// every rank counts up a number in the store, with how many operations it has begun.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/distributed/place.h"

namespace ovq::distributed {

// Names the rank. The group is of no use afterwards: neither are its operations, nor can it be left in an orderly way;
// the process should end.
struct RankFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Monitor;

class ProcessGroup {
 public:
  using Duration = std::chrono::milliseconds;

  // Returns once all have come; RankFailure names those who have not within the time-out.
  ProcessGroup(const Place& place, Duration timeout);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  ~ProcessGroup();

  int64_t rank() const { return place_.rank; }
  int64_t ranks() const { return place_.ranks; }

  // An operation that goes on beside this thread.
  class Pending {
   public:
    void wait();  // until it is done

   private:
    friend class ProcessGroup;
    struct Work;
    ProcessGroup* group_ = nullptr;
    std::shared_ptr<Work> work_;
  };

  // x <- the sum of all ranks' x, with the same bits on all of them. Tensors are contiguous, on the CPU, and belong to
  // the operation until it is done.
  Pending begin_sum(const at::Tensor& x);
  void sum(const at::Tensor& x) { begin_sum(x).wait(); }
  // x <- that of rank `from`
  Pending begin_broadcast(const at::Tensor& x, int64_t from);
  void broadcast(const at::Tensor& x, int64_t from) { begin_broadcast(x, from).wait(); }
  std::string broadcast(const std::string& text, int64_t from);
  // What each rank gave, on all of them.
  std::vector<at::Tensor> gather(const at::Tensor& x);
  // x goes to one rank, which receives it with the same tag.
  Pending begin_send(const at::Tensor& x, int64_t to, int64_t tag);
  void receive(const at::Tensor& x, int64_t from, int64_t tag);
  bool any(bool here);  // whether it is true on a rank

  // Tells the others why this rank will end, so that they can say so too. Never throws.
  void leave_with(const std::string& reason) noexcept;

 private:
  struct Parts;  // what is of c10d

  Pending begun(std::shared_ptr<Pending::Work> work);

  Place place_;
  Duration timeout_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<Parts> parts_;
};

// Holds the store for processes of this machine, and so outlives every one of them.
class StoreServer {
 public:
  StoreServer();
  ~StoreServer();
  int port() const;
  // Why the processes of this attempt end. What is said first, here or by a rank, stays.
  void say(int64_t attempt, const std::string& reason);
  std::string said(int64_t attempt) const;  // empty: nothing

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Whether this build has Gloo; without, the above throw std::runtime_error.
bool has_process_groups();

}  // namespace ovq::distributed
