// The memory that a call allocates through torch's CPU allocator and the kernels' own.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "ovq/core/buffer.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::bench {

struct AllocatedBytes {
  int64_t torch_total = 0;   // of all tensors, kept or not
  int64_t torch_peak = 0;    // of all tensors that existed at the same time
  int64_t kernels_peak = 0;  // of the kernels' buffers

  // An upper bound: the two peaks need not coincide.
  int64_t peak() const { return torch_peak + kernels_peak; }
};

// Receives torch's allocations on this thread, and of the backward that it runs.
class AllocationRecord : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, ops::MemoryTotal, ops::MemoryTotal, c10::Device) override {
    current_ += bytes;
    total += std::max<int64_t>(bytes, 0);
    peak = std::max(peak, current_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t total = 0, peak = 0;

 private:
  int64_t current_ = 0;
};

// Counts allocations beyond those before the call. The call's result is destroyed before counting ends.
template <class Call>
AllocatedBytes allocated_by(Call&& call) {
  const auto record = std::make_shared<AllocationRecord>();
  kernels::reset_peak_memory();
  const int64_t kernels_before = kernels::memory_use().current;
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, record);
    call();
  }
  return {record->total, record->peak, kernels::memory_use().peak - kernels_before};
}

}  // namespace ovq::bench
