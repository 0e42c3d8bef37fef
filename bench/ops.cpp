#include "bench/ops.h"

#include <fmt/format.h>

#include "bench/check.h"
#include "bench/ops_problem.h"
#include "bench/recurrence_cases.h"
#include "bench/torch_memory.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::bench {
namespace {

struct Job {
  OpsCall call;
  Shape shape;
  bool backward = false;
  Repetition repetition{.min_rounds = 3, .max_rounds = 10, .seconds = 15};

  std::string name() const {
    const std::string what = fmt::format("{} {} H{} d{}", call.ovq ? "ovq" : "attention",
                                         backward ? "forward+backward" : "forward", shape.heads, shape.dim);
    if (!call.ovq)
      return what + fmt::format(" T{}{}", shape.time, call.window > 0 ? fmt::format(" window {}", call.window) : "");
    return what + fmt::format(" L{} N{} T{}", call.options.chunk, call.options.centroids, shape.time);
  }
};

std::vector<Job> jobs(bool quick) {
  const auto ovq = [](int64_t centroids) { return OpsCall{.options = {.chunk = 128, .centroids = centroids}}; };
  const auto windowed = [](int64_t window) { return OpsCall{.ovq = false, .window = window}; };
  const auto at = [](int64_t time) { return Shape{.heads = 6, .dim = 128, .time = time}; };
  const Repetition few{.min_rounds = 2, .max_rounds = quick ? 2 : 3};
  const int64_t factor = quick ? 4 : 1;
  std::vector<Job> jobs = {
      {.call = ovq(2048), .shape = at(16384 / factor)},
      {.call = ovq(2048), .shape = at(4096 / factor), .backward = true},
      {.call = ovq(2048), .shape = at(16384 / factor), .backward = true},
      // Memory: one dictionary per chunk against a single one.
      {.call = ovq(8192), .shape = at(8192 / factor), .backward = true, .repetition = few},
      {.call = windowed(0), .shape = at(4096 / factor)},
      {.call = windowed(0), .shape = at(4096 / factor), .backward = true},
      {.call = windowed(128), .shape = at(4096 / factor)},
      {.call = windowed(128), .shape = at(4096 / factor), .backward = true},
  };
  if (quick)
    for (Job& job : jobs) job.repetition = few;
  return jobs;
}

OpsCase measure(const Job& job) {
  const OpsProblem problem(job.shape, 1);
  const auto run = [&](Backend backend) {
    const at::AutoGradMode gradients(job.backward);
    const at::Tensor o = job.call(backend, problem.inputs);
    if (job.backward) torch::autograd::grad({o}, problem.inputs, {problem.d_o});
  };
  const auto fused = [&] { run(Backend::fused); };
  const auto plain = [&] { run(Backend::composed); };
  OpsCase result{.fused_peak = allocated_by(fused).peak(), .plain_peak = allocated_by(plain).peak()};
  const auto timings = alternate(job.repetition, fused, plain);
  result.fused = timings[0];
  result.plain = timings[1];
  return result;
}

}  // namespace

OpsReport run_ops(const BenchOptions& options) {
  const auto start = Clock::now();
  const Bystanders bystanders;
  OpsReport report{.machine = describe_machine()};
  for (const Job& job : jobs(options.quick)) {
    if (!options.wanted(job.name())) continue;
    const CurrentCase shown(job.name());
    OpsCase result;
    try {
      check_paths_agree(job.call, checked_shape(job.shape, job.call.options.chunk));
      const Bystanders beside;
      result = measure(job);
      result.bystander_cores = beside.busy_cores();
    } catch (const Mismatch& mismatch) {
      result.mismatch = mismatch.what();
    }
    result.name = job.name();
    report.cases.push_back(result);
  }
  for (const OpsCase& result : run_recurrences(options)) report.cases.push_back(result);
  report.bystander_cores = bystanders.busy_cores();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace ovq::bench
