#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/ops.h"
#include "bench/recurrence_loops.h"
#include "bench/torch_memory.h"
#include "ovq/ops/gated_delta_rule/torch.h"
#include "ovq/ops/linear_attention/torch.h"
#include "ovq/ops/mesa/torch.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/short_convolution/torch.h"
#include "ovq/ops/ssd/torch.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::bench {
namespace {

using at::Tensor;

struct RecurrenceShape {
  int64_t batch = 1, time = 16384, groups = 6, heads = 6, key_dim = 128, value_dim = 128;
};

enum class Iterations { enough, usual };  // of mesa's solver: the plain loops solve exactly

struct RecurrenceOp {
  std::string name;
  std::function<Tensors(const RecurrenceShape&)> inputs;
  std::function<Tensor(const Tensors&, Iterations)> call;
  PlainLoops loops;
  // Multiply-adds per token and head, as counted at the top of the kernels' headers; 0: they depend on the data.
  std::function<double(const RecurrenceShape&, bool backward)> multiply_adds;
};

Tensor unit(const RecurrenceShape& s) { return ops::l2_norm(at::randn({s.batch, s.time, s.groups, s.key_dim})); }
Tensor values(const RecurrenceShape& s) { return at::randn({s.batch, s.time, s.heads, s.value_dim}); }
Tensor strengths(const RecurrenceShape& s) { return at::rand({s.batch, s.time, s.heads}); }
Tensor decays(const RecurrenceShape& s) { return -0.1 * at::rand({s.batch, s.time, s.heads}); }

// Heads of a group share the scores of queries and keys.
double linear_multiply_adds(const RecurrenceShape& s, bool backward) {
  const auto k = static_cast<double>(s.key_dim), v = static_cast<double>(s.value_dim);
  const double share = static_cast<double>(s.groups) / static_cast<double>(s.heads);
  return backward ? 5 * k * v + 32 * (1.5 * k + v) : 2 * k * v + 16 * (share * k + v);
}

const std::vector<RecurrenceOp>& recurrence_ops() {
  static const std::vector<RecurrenceOp> all = {
      {"gated_delta_rule",
       [](const RecurrenceShape& s) {
         return Tensors{unit(s), unit(s), values(s), decays(s), strengths(s)};
       },
       [](const Tensors& x, Iterations) {
         return ops::gated_delta_rule({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4]}).o;
       },
       gated_delta_rule_loops,
       [](const RecurrenceShape& s, bool backward) {
         const auto k = static_cast<double>(s.key_dim), v = static_cast<double>(s.value_dim);
         return backward ? 6 * k * v + 32 * (3 * k + 2 * v) : 3 * k * v + 32 * (k + v);
       }},
      {"ssd",
       [](const RecurrenceShape& s) {
         return Tensors{values(s), strengths(s), -at::rand({s.heads}), unit(s), unit(s), at::randn({s.heads})};
       },
       [](const Tensors& x, Iterations) {
         return ops::ssd({.x = x[0], .dt = x[1], .a = x[2], .b = x[3], .c = x[4], .d = x[5]}).o;
       },
       ssd_loops, linear_multiply_adds},
      {"mesa",
       [](const RecurrenceShape& s) {
         return Tensors{unit(s), unit(s), values(s), decays(s), strengths(s), at::ones({s.heads, s.key_dim})};
       },
       [](const Tensors& x, Iterations iterations) {
         ops::MesaInputs in{.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .lambda = x[5]};
         if (iterations == Iterations::enough) in.iterations = 200;
         return ops::mesa(in).o;
       },
       mesa_loops, [](const RecurrenceShape&, bool) { return 0.0; }},
      {"linear_attention",
       [](const RecurrenceShape& s) {
         return Tensors{unit(s), unit(s), values(s), decays(s)};
       },
       [](const Tensors& x, Iterations) {
         return ops::linear_attention({.q = x[0], .k = x[1], .v = x[2], .g = x[3]}).o;
       },
       linear_attention_loops, linear_multiply_adds},
      {"short_convolution",
       [](const RecurrenceShape& s) {
         return Tensors{values(s).flatten(2), at::randn({s.heads * s.value_dim, 4})};
       },
       [](const Tensors& x, Iterations) {
         return ops::short_convolution({.x = x[0], .weight = x[1], .activation = ops::Activation::silu});
       },
       short_convolution_loops,
       [](const RecurrenceShape& s, bool backward) {
         return static_cast<double>((backward ? 3 : 1) * 4 * s.value_dim);
       }},
  };
  return all;
}

struct RecurrenceJob {
  const RecurrenceOp* op;
  RecurrenceShape shape;
  bool backward;

  std::string name() const {
    const auto& [batch, time, groups, heads, key_dim, value_dim] = shape;
    return fmt::format(
        "{} {}{} H{} d{} T{}", op->name, backward ? "backward" : "forward", batch > 1 ? fmt::format(" B{}", batch) : "",
        heads, key_dim == value_dim ? fmt::format("{}", key_dim) : fmt::format("{}/{}", key_dim, value_dim), time);
  }
  double flops() const {
    return 2 * static_cast<double>(shape.batch * shape.time * shape.heads) * op->multiply_adds(shape, backward);
  }
};

std::vector<RecurrenceJob> recurrence_jobs(bool quick) {
  const std::vector<RecurrenceShape> shapes = {
      {.time = quick ? 2048 : 16384},
      {.batch = 16, .time = 512, .groups = 2, .heads = 2, .key_dim = 64, .value_dim = 64},
      {.batch = 16, .time = 512, .groups = 8, .heads = 8, .key_dim = 16, .value_dim = 16},
  };
  std::vector<RecurrenceJob> jobs;
  for (const RecurrenceOp& op : recurrence_ops()) {
    for (const RecurrenceShape& shape : shapes) {
      for (const bool backward : {false, true}) jobs.push_back({&op, shape, backward});
    }
    // The shape of ggml's benchmark of ssm_scan: heads of 64 with a state of 128 and shared b and c.
    if (op.name == "ssd") {
      jobs.push_back({&op, {.time = quick ? 2048 : 16384, .groups = 1, .heads = 12, .value_dim = 64}, false});
    }
  }
  return jobs;
}

std::vector<double> in_double(const Tensor& x) {
  const Tensor dense = x.detach().to(at::kDouble).contiguous();
  return {dense.data_ptr<double>(), dense.data_ptr<double>() + dense.numel()};
}

// Checks output and all gradients against the plain loops at a length of several chunks and a part of one.
void check_recurrence_case(const RecurrenceJob& job) {
  RecurrenceShape shape = job.shape;
  shape.batch = std::min<int64_t>(shape.batch, 2);
  shape.time = 150;
  torch::manual_seed(3);
  const Tensors inputs = job.op->inputs(shape);
  Tensors leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.clone().requires_grad_());
  Tensors actual{job.op->call(leaves, Iterations::enough)};
  const Tensor d_o = at::arange(actual[0].numel(), at::kFloat).cos().view_as(actual[0]);
  for (const Tensor& x : torch::autograd::grad({actual[0]}, leaves, {d_o})) actual.push_back(x);
  const Tensors plain = job.op->loops.in_float(inputs, d_o), exact = job.op->loops.in_double(inputs, d_o);
  for (size_t i = 0; i < exact.size(); ++i) {
    // Gradients of gates and of shared inputs sum terms larger than the result.
    Calibration calibration(std::sqrt(static_cast<double>(shape.key_dim * shape.value_dim)));
    const auto fast = in_double(actual[i]), single = in_double(plain[i]), truth = in_double(exact[i]);
    if (fast.size() != truth.size()) throw Mismatch(fmt::format("result {} has {} elements", i, fast.size()));
    for (size_t k = 0; k < truth.size(); ++k) calibration.add(fast[k], single[k], truth[k]);
    require_calibrated(calibration, i == 0 ? "output" : fmt::format("gradient {}", i));
  }
}

CaseResult measure_recurrence(const Runner& runner, const RecurrenceJob& job) {
  torch::manual_seed(4);
  Tensors inputs = job.op->inputs(job.shape);
  for (Tensor& x : inputs) x.requires_grad_(job.backward);
  const at::AutoGradMode gradients(job.backward);
  const auto forward = [&] { return job.op->call(inputs, Iterations::usual); };
  if (!job.backward) return runner.time(forward, job.flops(), allocated_by(forward).peak());
  const Tensor o = forward(), d_o = at::randn_like(o);
  const auto backward = [&] { torch::autograd::grad({o}, inputs, {d_o}, /*retain_graph=*/true); };
  return runner.time(backward, job.flops(), allocated_by(backward).peak());
}

}  // namespace

void run_recurrence_cases(Runner& runner) {
  for (const RecurrenceJob& job : recurrence_jobs(runner.quick())) {
    runner.run(
        job.name(), [&] { check_recurrence_case(job); }, [&] { return measure_recurrence(runner, job); });
  }
}

}  // namespace ovq::bench
