#include "bench/ops.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/flops.h"
#include "bench/tensor.h"
#include "bench/torch_memory.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/tensor_view.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::bench {
namespace {

// OVQ-attention with options, or causal attention with a window (0: none).
struct OpsJob {
  bool ovq = true;
  kernels::OvqOptions options;
  int64_t window = 0;
  Shape shape;
  bool backward = false;

  std::string name() const {
    const std::string what = fmt::format("{} {} H{} d{}", ovq ? "ovq" : "attention",
                                         backward ? "forward+backward" : "forward", shape.heads, shape.dim);
    if (!ovq) return what + fmt::format(" T{}{}", shape.time, window > 0 ? fmt::format(" window {}", window) : "");
    return what + fmt::format(" L{} N{} T{}", options.chunk, options.centroids, shape.time);
  }
  double flops() const {
    const double forward = ovq ? ovq_flops_forward(shape, options) : attention_flops_forward(shape, window);
    if (!backward) return forward;
    return forward + (ovq ? ovq_flops_backward(shape, options) : attention_flops_backward(shape, window));
  }
  at::Tensor call(const std::vector<at::Tensor>& x) const {
    return ovq ? ops::ovq_attention(x[0], x[1], x[2], x[3], options) : ops::attention(x[0], x[1], x[2], x[3], window);
  }
};

struct OpsProblem {
  explicit OpsProblem(const Shape& shape) : memory(shape, 1), d_o_memory(normal(shape, 9)) {
    const auto wrap = [&](float* data) { return at::from_blob(data, {1, shape.time, shape.heads, shape.dim}); };
    inputs = {wrap(memory.q.data()), wrap(memory.k.data()), wrap(memory.v.data()),
              at::from_blob(memory.beta.data(), {shape.heads})};
    for (at::Tensor& x : inputs) x.requires_grad_();
    d_o = wrap(d_o_memory.data());
  }

  Inputs memory;
  Tensor d_o_memory;
  std::vector<at::Tensor> inputs;  // q, k, v [1, T, H, D], beta [H]; they require gradients
  at::Tensor d_o;
};

// Output and gradients of the op against the plain loops.
void check_op(const OpsJob& job) {
  const Shape shape = checked_shape(job.shape, job.options.chunk);
  OpsProblem problem(shape);
  const at::Tensor o = job.call(problem.inputs);
  const std::vector<at::Tensor> d = torch::autograd::grad({o}, problem.inputs, {problem.d_o});
  const auto of = [](const at::Tensor& x) { return ops::view_of(x); };
  const std::vector<float>& beta = problem.memory.beta;
  const auto &q = problem.inputs[0], &k = problem.inputs[1], &v = problem.inputs[2];
  if (!job.ovq) {
    require_attention({.q = of(q), .k = of(k), .v = of(v), .beta = beta, .window = job.window}, of(problem.d_o), of(o),
                      {.d_q = of(d[0]), .d_k = of(d[1]), .d_v = of(d[2]), .d_beta = ops::span_of(d[3])});
    return;
  }
  const kernels::OvqInputs in{.q = of(q), .k = of(k), .v = of(v), .beta = beta, .options = job.options};
  std::vector<int32_t> assignments(kernels::ovq_assignment_count(in));
  kernels::ovq_attention_forward(in, {.o = Tensor(shape).view(), .lse = {}, .assignments = assignments});
  require_ovq(in, assignments, of(problem.d_o), of(o),
              {.d_q = of(d[0]), .d_k = of(d[1]), .d_v = of(d[2]), .d_beta = ops::span_of(d[3])});
}

void run_op(Runner& runner, const OpsJob& job) {
  runner.run(
      job.name(), [&] { check_op(job); },
      [&] {
        const OpsProblem problem(job.shape);
        const auto work = [&] {
          const at::AutoGradMode gradients(job.backward);
          const at::Tensor o = job.call(problem.inputs);
          if (job.backward) torch::autograd::grad({o}, problem.inputs, {problem.d_o});
        };
        return runner.time(work, job.flops(), allocated_by(work).peak());
      });
}

void run_attention_ops(Runner& runner) {
  const int64_t factor = runner.quick() ? 4 : 1;
  const auto run = [&](OpsJob job, int64_t time) {
    job.shape = {.heads = 6, .dim = 128, .time = time / factor};
    run_op(runner, job);
  };
  const auto ovq = [](int64_t centroids, bool backward) {
    return OpsJob{.options = {.chunk = 128, .centroids = centroids}, .backward = backward};
  };
  run(ovq(2048, false), 16384);
  run(ovq(2048, true), 4096);
  run(ovq(2048, true), 16384);
  run(ovq(8192, true), 8192);
  for (const int64_t window : {0, 128}) {
    for (const bool backward : {false, true}) run({.ovq = false, .window = window, .backward = backward}, 4096);
  }
}

}  // namespace

Report run_ops(BenchOptions options) {
  if (options.passes == 0) options.passes = 1;
  return run_cases(options, [](Runner& runner) {
    run_attention_ops(runner);
    run_recurrence_cases(runner);
  });
}

}  // namespace ovq::bench
