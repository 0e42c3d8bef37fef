// FLOPs that the kernels execute, as counted at the top of their headers.
#pragma once

#include <cstdint>

#include "ovq/ops/ovq_attention/options.h"

namespace ovq::bench {

struct Shape {
  int64_t heads = 6;  // of queries, keys and values
  int64_t dim = 128;
  int64_t time = 4096;
  int64_t batch = 1;
};

double attention_flops_forward(const Shape& shape, int64_t window);
double attention_flops_backward(const Shape& shape, int64_t window);
double ovq_flops_forward(const Shape& shape, const kernels::OvqOptions& options);
double ovq_flops_backward(const Shape& shape, const kernels::OvqOptions& options);

// Centroids per head after `time` tokens, starting with an empty dictionary.
int64_t final_size(const kernels::OvqOptions& options, int64_t time);

}  // namespace ovq::bench
