// Compares an op with its formula, a few ATen calls in the test: as accurate in float, on every instruction set, and
// bit for bit the same for any number of threads.
#pragma once

#include <ATen/Parallel.h>

#include <functional>
#include <vector>

#include "ovq/core/isa.h"
#include "ovq/ops/products/products.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {

// From inputs to outputs.
using OpCall = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

// Outputs, then gradients of weighted_sum(outputs).
inline std::vector<Tensor> outputs_and_gradients(const OpCall& call, const std::vector<Tensor>& inputs,
                                                 at::ScalarType type) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().to(type).requires_grad_());
  std::vector<Tensor> results = call(leaves);
  for (const Tensor& gradient : torch::autograd::grad({weighted_sum(results)}, leaves)) results.push_back(gradient);
  return results;
}

// inputs: double
inline void expect_as_good_as_formula(const OpCall& call, const OpCall& formula, const std::vector<Tensor>& inputs) {
  const auto truth = outputs_and_gradients(formula, inputs, at::kDouble);
  const auto plain = outputs_and_gradients(formula, inputs, at::kFloat);
  const int threads = at::get_num_threads();
  for (const std::string& isa : kernels::available_isas()) {
    kernels::select_isa(isa);
    // Where the library multiplies, the order of its sums may depend on the threads.
    const bool own_products = kernels::product_is_faster(64, 1, 1);
    std::vector<Tensor> one;
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      const auto actual = outputs_and_gradients(call, inputs, at::kFloat);
      ASSERT_EQ(actual.size(), truth.size());
      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_TRUE(calibrated(actual[i], plain[i], truth[i])) << isa << ", result " << i;
        if (count > 1 && own_products) {
          EXPECT_TRUE(at::equal(actual[i], one[i])) << isa << ", result " << i << ", threads " << count;
        }
      }
      one = actual;
    }
  }
  kernels::select_isa("");
  at::set_num_threads(threads);
}

// bfloat16 and half are computed in float32: outputs and gradients are those of the same numbers in float32, rounded.
// float64 and tensors without data are refused by name.
inline void expect_conversions(const std::string& op, const OpCall& call, const std::vector<Tensor>& inputs) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    std::vector<Tensor> rounded;
    for (const Tensor& input : inputs) rounded.push_back(input.to(type).to(at::kFloat));
    const auto wide = outputs_and_gradients(call, rounded, at::kFloat),
               narrow = outputs_and_gradients(call, rounded, type);
    const size_t outputs = wide.size() - inputs.size();
    ASSERT_EQ(narrow.size(), wide.size());
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(narrow[i].scalar_type(), type) << op << ", result " << i;
      // The factors of weighted_sum are rounded for gradients.
      const double tolerance = i < outputs ? 0 : type == at::kHalf ? 4e-3 : 1.6e-2;
      EXPECT_TRUE(close(narrow[i], i < outputs ? wide[i].to(type) : wide[i], tolerance)) << op << ", result " << i;
    }
  }
  const auto refused = [&](const std::function<Tensor(const Tensor&)>& change) {
    std::vector<Tensor> changed;
    for (const Tensor& input : inputs) changed.push_back(change(input));
    const std::string message = message_of([&] { call(changed); });
    EXPECT_EQ(message.find("[" + op + "] "), 0u) << message;
    EXPECT_NE(message.find("the kernels take float32, bfloat16 and half on the CPU"), std::string::npos) << message;
  };
  refused([](const Tensor& x) { return x.to(at::kDouble); });
  refused([](const Tensor& x) { return at::empty(x.sizes(), x.options().device(at::kMeta).dtype(at::kFloat)); });
}

// A second derivative, and forward mode, is an error that names the op.
inline void expect_no_second_derivative(const std::string& op, const OpCall& call, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().to(at::kFloat).requires_grad_());
  const Tensor first = torch::autograd::grad({weighted_sum(call(leaves))}, {leaves[0]}, {}, true, true)[0];
  try {
    torch::autograd::grad({first.sum()}, {leaves[0]});
    ADD_FAILURE() << "nothing thrown";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("[" + op + "]"), std::string::npos) << error.what();
  }
}

}  // namespace ovq::ops::test
