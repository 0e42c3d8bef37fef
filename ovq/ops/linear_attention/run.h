// Decayed linear attention and SSD, which is the same with steps, on the heads of all sequences.
#pragma once

#include "ovq/ops/recurrence/run.h"

namespace ovq::kernels::recurrence {

// As LinearCall has them.
struct LinearInputs {
  const char* op = nullptr;
  View<const float> q, k, v, g, steps;
  const float *rates = nullptr, *skips = nullptr;
  float scale = 1;
  View<const float> state;
  std::span<const int64_t> cu_seqlens;
};

struct LinearGradients {
  View<float> d_q, d_k, d_v, d_g, d_steps, d_state;
  std::vector<double> d_rates, d_skips;  // [sequences, heads]: sized where `rates` and `skips` are given
};

int64_t saved_floats(const LinearInputs& inputs);

// Each checks its arguments: std::invalid_argument names the one that is wrong.
void linear_forward(const LinearInputs& inputs, const View<float>& o, const View<float>& state, std::span<float> saved);
void linear_backward(const LinearInputs& inputs, std::span<const float> saved, const View<const float>& d_o,
                     const View<const float>& d_state, LinearGradients& gradients);

}  // namespace ovq::kernels::recurrence
