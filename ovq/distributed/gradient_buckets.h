// Gradients added up over ranks while backward runs: a bucket of parameters is on its way as soon as the last of them
// has its gradient. Buckets hold parameters from the last to the first, about in the order backward reaches them, and
// are sent in that order whatever the order of gradients, so that all ranks send the same.
#pragma once

#include <memory>
#include <vector>

#include "ovq/distributed/process_group.h"
#include "ovq/ops/torch_compat.h"

namespace ovq::distributed {

class GradientBuckets {
 public:
  // Of float parameters on the CPU that require gradients.
  GradientBuckets(std::shared_ptr<ProcessGroup> group, std::vector<at::Tensor> parameters,
                  int64_t bucket_bytes = int64_t{2} << 20);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;
  ~GradientBuckets();

  // Before the step's last backward: those before it only add to what is there.
  void expect_last_backward() { sending_ = true; }
  // After it: gradients are the sums over all ranks, undefined where no rank has one. Also for a rank that had no
  // backward at all.
  void finish();

  int64_t buckets() const { return static_cast<int64_t>(buckets_.size()); }
  int64_t nbytes() const;

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    std::vector<at::Tensor> gradients;  // of each parameter, a part of `buffer`
    at::Tensor buffer;                  // the gradients one after the other, then for each whether there is one
    size_t missing = 0;                 // gradients that backward has not reached
    ProcessGroup::Pending pending;
  };
  struct Hook {
    ops::NodePointer accumulator;
    uintptr_t key = 0;
  };

  void reached(size_t parameter);
  void send_ready(bool all);
  void send(Bucket& bucket);

  std::shared_ptr<ProcessGroup> group_;
  std::vector<at::Tensor> parameters_;
  std::vector<size_t> bucket_of_;
  std::vector<bool> reached_;
  std::vector<Bucket> buckets_;
  size_t sent_ = 0;
  bool sending_ = false;
  std::vector<Hook> hooks_;
};

}  // namespace ovq::distributed
