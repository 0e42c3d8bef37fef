// Compares a fused op with its composition: as accurate in float, on every instruction set, and bit for bit the same
// for any number of threads.
#pragma once

#include <ATen/Parallel.h>

#include <functional>
#include <vector>

#include "ovq/core/isa.h"
#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/torch/backend.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {

// From inputs to outputs; the op chooses its path.
using OpCall = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

// Outputs, then gradients of weighted_sum(outputs).
inline std::vector<Tensor> outputs_and_gradients(const OpCall& call, const std::vector<Tensor>& inputs,
                                                 at::ScalarType type, Backend backend) {
  const BackendScope scope(backend);
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().to(type).requires_grad_());
  std::vector<Tensor> results = call(leaves);
  for (const Tensor& gradient : torch::autograd::grad({weighted_sum(results)}, leaves)) results.push_back(gradient);
  return results;
}

// inputs: double
inline void expect_as_good_as_composed(const OpCall& call, const std::vector<Tensor>& inputs) {
  const auto truth = outputs_and_gradients(call, inputs, at::kDouble, Backend::composed);
  const auto plain = outputs_and_gradients(call, inputs, at::kFloat, Backend::composed);
  const int threads = at::get_num_threads();
  for (const std::string& isa : kernels::available_isas()) {
    kernels::select_isa(isa);
    std::vector<Tensor> one;
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      const auto fused = outputs_and_gradients(call, inputs, at::kFloat, Backend::automatic);
      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_TRUE(calibrated(fused[i], plain[i], truth[i])) << isa << ", result " << i;
        // Where the library multiplies, the order of its sums may depend on the threads.
        if (count > 1 && kernels::detail::row_kernels().fast_products) {
          EXPECT_TRUE(at::equal(fused[i], one[i])) << isa << ", result " << i << ", threads " << count;
        }
      }
      one = fused;
    }
  }
  kernels::select_isa("");
  at::set_num_threads(threads);
}

}  // namespace ovq::ops::test
