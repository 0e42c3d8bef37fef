// Decayed linear attention and SSD, which is the same with steps, on the heads of all sequences.
#pragma once

#include "ovq/kernels/recurrence_run.h"

namespace ovq::kernels::recurrence {

// A call with inputs checked, to be completed with outputs or gradients.
struct LinearPlan {
  const char* op = nullptr;
  Sizes sizes;
  std::vector<Piece> pieces;
  LinearCall call;
};

LinearPlan plan_linear(const char* op, const LinearCall& call, std::span<const int64_t> cu_seqlens);
int64_t saved_floats(const LinearPlan& plan);

// Checks outputs or gradients, and runs.
void run_forward(LinearPlan& plan, std::span<float> saved);
void run_backward(LinearPlan& plan, std::span<const float> saved);

}  // namespace ovq::kernels::recurrence
