// Sums gradients over ranks while backward runs: a bucket of parameters is sent as soon as all its gradients are ready.
// Buckets hold the parameters from last to first, about the order in which backward reaches them, and are always sent
// in this order so that all ranks agree.
#pragma once

#include <memory>
#include <vector>

#include "ovq/distributed/process_group.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::distributed {

class GradientBuckets {
 public:
  // The parameters must be float tensors on the CPU that require gradients.
  GradientBuckets(std::shared_ptr<ProcessGroup> group, std::vector<at::Tensor> parameters,
                  int64_t bucket_bytes = int64_t{2} << 20);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;
  ~GradientBuckets();

  // Call before the step's last backward; earlier ones only accumulate gradients.
  void expect_last_backward() { sending_ = true; }
  // Call after it: sets the gradients to their sums over all ranks, undefined where no rank has one. Ranks without any
  // backward must call it too.
  void finish();

  int64_t buckets() const { return static_cast<int64_t>(buckets_.size()); }

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    std::vector<at::Tensor> gradients;  // one for each parameter, a view of `buffer`
    at::Tensor buffer;                  // all gradients, then for each one a flag whether it is defined
    size_t missing = 0;                 // gradients still to be computed
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
