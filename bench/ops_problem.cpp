#include "bench/ops_problem.h"

#include <string>
#include <string_view>

#include "bench/check.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/attention/torch_plain.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/tensor_view.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::bench {
namespace {

// Output, then the gradients of q, k, v and beta.
std::vector<at::Tensor> results(const OpsCall& call, Backend backend, const std::vector<at::Tensor>& x,
                                const at::Tensor& d_o, const at::Tensor& assignments) {
  std::vector<at::Tensor> all = {call(backend, x, assignments)};
  for (const at::Tensor& gradient : torch::autograd::grad({all[0]}, x, {d_o.to(x[0].scalar_type())})) {
    all.push_back(gradient);
  }
  return all;
}

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

std::vector<double> doubles(const at::Tensor& x) {
  const at::Tensor dense = x.detach().to(at::kDouble).contiguous();
  return {dense.data_ptr<double>(), dense.data_ptr<double>() + dense.numel()};
}

}  // namespace

OpsProblem::OpsProblem(const Shape& shape, uint64_t seed) : memory(shape, seed), d_o_memory(normal(shape, 9)) {
  const auto wrap = [&](float* data) { return at::from_blob(data, {1, shape.time, shape.heads, shape.dim}); };
  inputs = {wrap(memory.q.data()), wrap(memory.k.data()), wrap(memory.v.data()),
            at::from_blob(memory.beta.data(), {shape.heads})};
  for (at::Tensor& x : inputs) x.requires_grad_();
  d_o = wrap(d_o_memory.data());
}

std::vector<at::Tensor> OpsProblem::leaves(at::ScalarType dtype) const {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& x : inputs) copies.push_back(x.detach().to(dtype).clone().requires_grad_());
  return copies;
}

at::Tensor OpsCall::operator()(Backend backend, const std::vector<at::Tensor>& x, const at::Tensor& assignments) const {
  if (!ovq) {
    return backend == Backend::fused ? ops::attention(x[0], x[1], x[2], x[3], window)
                                     : ops::plain_attention(x[0], x[1], x[2], x[3], window, 0);
  }
  if (backend == Backend::fused) return ops::ovq_attention(x[0], x[1], x[2], x[3], options);
  const auto empty = ops::PlainState::empty(x[1], x[2], options);
  return ops::plain_ovq_attention(x[0], x[1], x[2], x[3], empty, {}, assignments).o;
}

at::Tensor OpsCall::assignments(const std::vector<at::Tensor>& x) const {
  if (!ovq) return {};
  const kernels::OvqInputs in{.q = ops::view_of(x[0]),
                              .k = ops::view_of(x[1]),
                              .v = ops::view_of(x[2]),
                              .beta = ops::span_of(x[3]),
                              .options = options};
  const at::Tensor o = at::empty(x[0].sizes());
  const at::Tensor chosen = at::empty({1, x[1].size(1), x[1].size(2)}, at::kInt);
  kernels::ovq_attention_forward(in,
                                 {.o = ops::view_of(o),
                                  .lse = {},
                                  .assignments = {chosen.data_ptr<int32_t>(), static_cast<size_t>(chosen.numel())}});
  return chosen;
}

void check_paths_agree(const OpsCall& call, const Shape& shape) {
  const OpsProblem problem(shape, 1);
  const at::Tensor assignments = call.assignments(problem.inputs);
  const auto run = [&](Backend backend, at::ScalarType dtype) {
    return results(call, backend, problem.leaves(dtype), problem.d_o, assignments);
  };
  const auto fused = run(Backend::fused, at::kFloat), plain = run(Backend::composed, at::kFloat);
  const auto exact = run(Backend::composed, at::kDouble);
  const char* const names[] = {"o", "d_q", "d_k", "d_v", "d_beta"};
  for (size_t i = 0; i < exact.size(); ++i) {
    Calibration calibration;
    // d_beta sums q . d_q / beta over the tokens; its rounding depends on the terms, not on the sum.
    if (names[i] == std::string_view("d_beta"))
      calibration.add_magnitude(largest((problem.inputs[0] * exact[1]).sum(-1).abs().sum(1) / problem.inputs[3]));
    const auto fast = doubles(fused[i]), single = doubles(plain[i]), truth = doubles(exact[i]);
    for (size_t k = 0; k < truth.size(); ++k) calibration.add(fast[k], single[k], truth[k]);
    require_calibrated(calibration, std::string("fused ") + names[i]);
  }
}

}  // namespace ovq::bench
