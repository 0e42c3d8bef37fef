#include "bench/recurrence_cases.h"

#include <fmt/format.h>

#include <functional>

#include "bench/check.h"
#include "bench/torch_memory.h"
#include "ovq/ops/gated_delta_rule/torch.h"
#include "ovq/ops/linear_attention/torch.h"
#include "ovq/ops/mesa/torch.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/short_convolution/torch.h"
#include "ovq/ops/ssd/torch.h"
#include "ovq/ops/torch/backend.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct RecurrenceShape {
  int64_t batch = 1, time = 16384, groups = 6, heads = 6, key_dim = 128, value_dim = 128;
};

struct RecurrenceOp {
  const char* name;
  std::function<Tensors(const RecurrenceShape&)> inputs;
  std::function<Tensor(const Tensors&)> call;
};

Tensor unit(const RecurrenceShape& s) { return ops::l2_norm(at::randn({s.batch, s.time, s.groups, s.key_dim})); }
Tensor values(const RecurrenceShape& s) { return at::randn({s.batch, s.time, s.heads, s.value_dim}); }
Tensor strengths(const RecurrenceShape& s) { return at::rand({s.batch, s.time, s.heads}); }
Tensor decays(const RecurrenceShape& s) { return -0.1 * at::rand({s.batch, s.time, s.heads}); }

const std::vector<RecurrenceOp>& recurrence_ops() {
  static const std::vector<RecurrenceOp> all = {
      {"gated_delta_rule",
       [](const RecurrenceShape& s) {
         return Tensors{unit(s), unit(s), values(s), decays(s), strengths(s)};
       },
       [](const Tensors& x) {
         return ops::gated_delta_rule({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4]}).o;
       }},
      {"ssd",
       [](const RecurrenceShape& s) {
         return Tensors{values(s), strengths(s), -at::rand({s.heads}), unit(s), unit(s), at::randn({s.heads})};
       },
       [](const Tensors& x) {
         return ops::ssd({.x = x[0], .dt = x[1], .a = x[2], .b = x[3], .c = x[4], .d = x[5]}).o;
       }},
      {"mesa",
       [](const RecurrenceShape& s) {
         return Tensors{unit(s), unit(s), values(s), decays(s), strengths(s), at::ones({s.heads, s.key_dim})};
       },
       [](const Tensors& x) {
         return ops::mesa({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .lambda = x[5]}).o;
       }},
      {"linear_attention",
       [](const RecurrenceShape& s) {
         return Tensors{unit(s), unit(s), values(s), decays(s)};
       },
       [](const Tensors& x) { return ops::linear_attention({.q = x[0], .k = x[1], .v = x[2], .g = x[3]}).o; }},
      {"short_convolution",
       [](const RecurrenceShape& s) {
         return Tensors{values(s).flatten(2), at::randn({s.heads * s.value_dim, 4})};
       },
       [](const Tensors& x) {
         return ops::short_convolution({.x = x[0], .weight = x[1], .activation = ops::Activation::silu});
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
    if (op.name == std::string("ssd")) {
      jobs.push_back({&op, {.time = quick ? 2048 : 16384, .groups = 1, .heads = 12, .value_dim = 64}, false});
    }
  }
  return jobs;
}

std::vector<double> in_double(const Tensor& x) {
  const Tensor dense = x.detach().to(at::kDouble).contiguous();
  return {dense.data_ptr<double>(), dense.data_ptr<double>() + dense.numel()};
}

// Checks output and all gradients at a length of several chunks and a part of one. Throws Mismatch.
void check_recurrence_case(const RecurrenceJob& job) {
  RecurrenceShape shape = job.shape;
  shape.batch = std::min<int64_t>(shape.batch, 2);
  shape.time = 150;
  torch::manual_seed(3);
  const Tensors inputs = job.op->inputs(shape);
  const auto run = [&](ops::Backend backend, at::ScalarType type) {
    const ops::BackendScope scope(backend);
    Tensors leaves;
    for (const Tensor& x : inputs) leaves.push_back(x.to(type).clone().requires_grad_());
    Tensors results{job.op->call(leaves)};
    const Tensor d_o = at::arange(results[0].numel(), leaves[0].options()).cos().view_as(results[0]);
    for (const Tensor& x : torch::autograd::grad({results[0]}, leaves, {d_o})) results.push_back(x);
    return results;
  };
  const Tensors fused = run(ops::Backend::fused, at::kFloat), plain = run(ops::Backend::composed, at::kFloat);
  const Tensors exact = run(ops::Backend::composed, at::kDouble);
  for (size_t i = 0; i < exact.size(); ++i) {
    // Gradients of gates and of shared inputs sum terms larger than the result.
    Calibration calibration(std::sqrt(static_cast<double>(shape.key_dim * shape.value_dim)));
    const auto fast = in_double(fused[i]), single = in_double(plain[i]), truth = in_double(exact[i]);
    for (size_t k = 0; k < truth.size(); ++k) calibration.add(fast[k], single[k], truth[k]);
    require_calibrated(calibration, i == 0 ? "output" : fmt::format("gradient {}", i));
  }
}

OpsCase measure_recurrence(const RecurrenceJob& job, bool quick) {
  torch::manual_seed(4);
  Tensors inputs = job.op->inputs(job.shape);
  for (Tensor& x : inputs) x.requires_grad_(job.backward);
  const auto forward = [&](ops::Backend backend) {
    const ops::BackendScope scope(backend);
    const at::AutoGradMode gradients(job.backward);
    return job.op->call(inputs);
  };
  const Repetition repetition{.min_rounds = 3, .max_rounds = quick ? 3 : 10, .seconds = 8};
  OpsCase result;
  const auto measure = [&](const auto& fused, const auto& plain) {
    result.fused_peak = allocated_by(fused).peak();
    result.plain_peak = allocated_by(plain).peak();
    const auto timings = alternate(repetition, fused, plain);
    result.fused = timings[0];
    result.plain = timings[1];
  };
  if (!job.backward) {
    measure([&] { forward(ops::Backend::fused); }, [&] { forward(ops::Backend::composed); });
    return result;
  }
  const Tensor fused = forward(ops::Backend::fused), plain = forward(ops::Backend::composed),
               d_o = at::randn_like(fused);
  measure([&] { torch::autograd::grad({fused}, inputs, {d_o}, true); },
          [&] { torch::autograd::grad({plain}, inputs, {d_o}, true); });
  return result;
}

}  // namespace

std::vector<OpsCase> run_recurrences(const BenchOptions& options) {
  std::vector<OpsCase> cases;
  for (const RecurrenceJob& job : recurrence_jobs(options.quick)) {
    if (!options.wanted(job.name())) continue;
    const CurrentCase shown(job.name());
    OpsCase result;
    try {
      check_recurrence_case(job);
      result = measure_recurrence(job, options.quick);
    } catch (const Mismatch& mismatch) {
      result.mismatch = mismatch.what();
    }
    result.name = job.name();
    cases.push_back(result);
  }
  return cases;
}

}  // namespace ovq::bench
