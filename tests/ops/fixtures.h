// Random tensors for the ops, gradients, and comparison of named results.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ovq/ops/torch/torch.h"
#include "tests/core/compare.h"

namespace ovq::ops::test {

using at::Tensor;

// Outputs and gradients by name.
using Results = std::map<std::string, Tensor>;

inline Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

inline Tensor unit_rows(at::IntArrayRef sizes, uint64_t seed) {
  const Tensor x = normal(sizes, seed);
  return x / x.norm(2, {-1}, true);
}

// q, k, v, beta. Queries and keys of unit norm; beta around sqrt(dk), different for each head.
struct Shape {
  int64_t batch = 2, time = 45, query_heads = 2, kv_heads = 2, key_dim = 8, value_dim = 8;
};
inline std::vector<Tensor> make_inputs(const Shape& shape, uint64_t seed) {
  const auto [batch, time, query_heads, kv_heads, key_dim, value_dim] = shape;
  const Tensor scale = at::arange(query_heads, at::kFloat).remainder(3).add(0.5);
  return {unit_rows({batch, time, query_heads, key_dim}, 10 * seed + 1),
          unit_rows({batch, time, kv_heads, key_dim}, 10 * seed + 2),
          normal({batch, time, kv_heads, value_dim}, 10 * seed + 3), scale * std::sqrt(static_cast<double>(key_dim))};
}

// Weights of tokens [B, T, Hkv], in (0, 3)
inline Tensor make_weights(const Shape& shape, uint64_t seed) {
  return normal({shape.batch, shape.time, shape.kv_heads}, 10 * seed + 4).sigmoid().mul(3);
}

// Copies as leaves, in another dtype if given.
inline std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, at::ScalarType dtype) {
  std::vector<Tensor> result;
  for (const Tensor& x : tensors) result.push_back(x.detach().to(dtype).clone().requires_grad_());
  return result;
}

// Gradients of sum(outputs * weights); zero for inputs that no output depends on.
inline std::vector<Tensor> gradients_of(const std::vector<Tensor>& outputs, const std::vector<Tensor>& weights,
                                        const std::vector<Tensor>& inputs) {
  std::vector<Tensor> used, factors;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    used.push_back(outputs[i]);
    factors.push_back(weights[i].to(outputs[i].scalar_type()));
  }
  std::vector<Tensor> gradients(inputs.size());
  if (!used.empty()) gradients = torch::autograd::grad(used, inputs, factors, /*retain_graph=*/true, false, true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
  }
  return gradients;
}

template <class T>
std::vector<T> values_of(const Tensor& x) {
  const Tensor dense = x.detach().contiguous();
  return {dense.data_ptr<T>(), dense.data_ptr<T>() + dense.numel()};
}

template <class T>
Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef sizes) {
  return at::tensor(values, c10::CppTypeToScalarType<T>::value).reshape(sizes);
}

// Bit for bit, so that NaN would equal NaN.
inline testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return testing::AssertionFailure() << "another shape";
  return kernels::test::same_bits(values_of<float>(actual), values_of<float>(expected));
}

// Sizes of the terms that may cancel in a result, by its name.
using Magnitudes = std::map<std::string, double>;

// As expect_gradients_match of the kernels' tests: beta bounds the factor of d_o . v, and d_beta sums over tokens.
inline Magnitudes magnitudes(const std::vector<Tensor>& inputs) {
  const double product = 4 * std::sqrt(static_cast<double>(inputs[2].size(3)));
  const double keys = inputs[3].abs().max().item<double>() * product;
  const double terms = std::sqrt(static_cast<double>(inputs[0].size(0) * inputs[0].size(1)));
  return {{"d_q", keys},
          {"d_k", keys},
          {"d_initial_keys", keys},
          {"d_initial_pending_keys", keys},
          {"d_beta", terms * product}};
}

// fast (float): error against exact (double) at most twice that of plain (float), plus a floor. NaN fails.
inline void expect_calibrated(const Results& fast, const Results& plain, const Results& exact,
                              const Magnitudes& magnitudes) {
  ASSERT_EQ(fast.size(), exact.size());
  for (const auto& [name, truth] : exact) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(fast.count(name) == 1 && plain.count(name) == 1);
    ASSERT_EQ(fast.at(name).sizes(), truth.sizes());
    ASSERT_EQ(plain.at(name).sizes(), truth.sizes());
    const auto magnitude = magnitudes.find(name.substr(0, name.find(' ')));
    EXPECT_TRUE(kernels::test::calibrated({.actual = values_of<float>(fast.at(name)),
                                           .plain = values_of<float>(plain.at(name)),
                                           .truth = values_of<double>(truth),
                                           .magnitude = magnitude == magnitudes.end() ? 1 : magnitude->second}));
  }
}

}  // namespace ovq::ops::test
