#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "bench/check.h"
#include "bench/flops.h"
#include "bench/paper_baseline.h"
#include "bench/tensor.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"

namespace ovq::bench {
namespace {

using kernels::OvqInputs;
using kernels::OvqOptions;

std::string describe(const Shape& shape, const OvqOptions& options) {
  const std::string batch = shape.batch > 1 ? fmt::format("B{} ", shape.batch) : "";
  return fmt::format("{}H{} d{} L{} N{} T{}{}", batch, shape.heads, shape.dim, options.chunk, options.centroids,
                     shape.time, options.weighted ? " weighted" : "");
}
std::string forward_name(const Shape& shape, const OvqOptions& options) {
  return "ovq forward " + describe(shape, options);
}
std::string backward_name(const Shape& shape, const OvqOptions& options) {
  return "ovq backward " + describe(shape, options);
}

// All inputs and outputs of forward and backward, allocated once.
struct OvqProblem {
  OvqProblem(const Shape& shape, const OvqOptions& options)
      : tensors(shape, 1),
        o(shape),
        lse(per_row(shape)),
        inputs{.q = tensors.q.view(),
               .k = tensors.k.view(),
               .v = tensors.v.view(),
               .beta = tensors.beta,
               .weights = options.weighted ? tensors.weights.view() : kernels::View<float>{},
               .options = options} {
    assignments.resize(kernels::ovq_assignment_count(inputs));
  }
  void forward() {
    kernels::ovq_attention_forward(inputs, {.o = o.view(), .lse = lse.view(), .assignments = assignments});
  }

  Inputs tensors;
  Tensor o, lse;
  OvqInputs inputs;
  std::vector<int32_t> assignments;
};

struct OvqTraining : OvqProblem {
  OvqTraining(const Shape& shape, const OvqOptions& options)
      : OvqProblem(shape, options), d_o(normal(shape, 9)), gradients(shape) {}
  void backward() {
    kernels::ovq_attention_backward(inputs, {.o = o.view(), .lse = lse.view(), .assignments = assignments},
                                    {.d_o = d_o.view()}, gradients.of_ovq());
  }

  Tensor d_o;
  Gradients gradients;
};

void run_forward(Runner& runner, const Shape& shape, const OvqOptions& options) {
  runner.run(
      forward_name(shape, options), [&] { check_ovq(checked_shape(shape, options.chunk), options); },
      [&] {
        OvqProblem problem(shape, options);
        return runner.time([&] { problem.forward(); }, ovq_flops_forward(shape, options));
      });
}

void run_backward(Runner& runner, const Shape& shape, const OvqOptions& options) {
  runner.run(
      backward_name(shape, options), [&] { check_ovq(checked_shape(shape, options.chunk), options); },
      [&] {
        OvqTraining problem(shape, options);
        problem.forward();
        return runner.time([&] { problem.backward(); }, ovq_flops_backward(shape, options));
      });
}

// The cost of weights: the same case with and without them.
void run_weighted(Runner& runner, const Shape& shape, const OvqOptions& options) {
  OvqOptions weighted = options;
  weighted.weighted = true;
  run_forward(runner, shape, weighted);
  run_backward(runner, shape, weighted);
  runner.compare("ovq forward, with weights / without, " + describe(shape, options), forward_name(shape, weighted),
                 forward_name(shape, options));
  runner.compare("ovq backward, with weights / without, " + describe(shape, options), backward_name(shape, weighted),
                 backward_name(shape, options));
}

// What training allocates beyond its inputs and outputs; it must not depend on the number of centroids.
void run_memory(Runner& runner, const Shape& shape, const OvqOptions& options) {
  runner.run(
      "ovq forward+backward " + describe(shape, options),
      [&] { check_ovq(checked_shape(shape, options.chunk), options); },
      [&] {
        OvqTraining problem(shape, options);
        const auto step = [&] {
          problem.forward();
          problem.backward();
        };
        CaseResult result{.flops = ovq_flops_forward(shape, options) + ovq_flops_backward(shape, options),
                          .bytes_allocated = bytes_allocated(step)};
        result.timing = repeat(step, {.min_rounds = 1, .max_rounds = 1});
        const auto tensors = static_cast<double>(problem.tensors.nbytes() + problem.o.nbytes());
        const int64_t row_bytes = 2 * shape.dim * static_cast<int64_t>(sizeof(float));
        result.figures = {
            {"q + k + v + o", tensors, "bytes"},
            {"allocated / (q + k + v + o)", static_cast<double>(*result.bytes_allocated) / tensors, "x"},
            {"of that: one head's final dictionary", static_cast<double>(final_size(options, shape.time) * row_bytes),
             "bytes"},
        };
        return result;
      });
}

}  // namespace

void run_ovq_cases(Runner& runner) {
  const OvqOptions wide{.chunk = 128, .centroids = 2048};
  const OvqOptions narrow{.chunk = 64, .centroids = 512};
  const Shape usual{.heads = 6, .dim = 128, .time = runner.quick() ? 4096 : 16384};
  const Shape longer{.heads = 6, .dim = 128, .time = 4 * usual.time};
  const Shape small{.heads = 6, .dim = 64, .time = 4096};

  run_forward(runner, usual, wide);
  run_backward(runner, usual, wide);
  run_forward(runner, small, narrow);
  run_backward(runner, small, narrow);
  run_weighted(runner, usual, wide);
  run_weighted(runner, small, narrow);
  run_forward(runner, longer, wide);
  if (runner.find(forward_name(longer, wide)) != nullptr && runner.find(forward_name(usual, wide)) != nullptr) {
    runner.compare(fmt::format("ovq forward, time at T{} / T{}", longer.time, usual.time), forward_name(longer, wide),
                   forward_name(usual, wide));
    runner.add_comparison({fmt::format("ovq forward, FLOPs at T{} / T{}", longer.time, usual.time),
                           ovq_flops_forward(longer, wide) / ovq_flops_forward(usual, wide), "x"});
  }
  run_memory(runner, usual, {.chunk = 128, .centroids = 4 * wide.centroids});
}

void run_small_ovq_cases(Runner& runner) {
  const auto both = [&](const Shape& shape, const OvqOptions& options) {
    run_forward(runner, shape, options);
    run_backward(runner, shape, options);
  };
  // Shapes of the recall experiments: tiny and small models with heads of 16.
  both({.heads = 8, .dim = 16, .time = 256, .batch = 32}, {.chunk = 32, .centroids = 128});
  both({.heads = 8, .dim = 16, .time = 1024, .batch = 16}, {.chunk = 32, .centroids = 256});

  // Heads of 16 against heads of 64 at equal width, so with equal FLOPs.
  struct Widths {
    int64_t batch, time, width;
    OvqOptions options;
  };
  for (const auto& [batch, time, width, options] :
       {Widths{8, 512, 256, {.chunk = 32, .centroids = 256}},
        Widths{1, runner.quick() ? 2048 : 4096, 256, {.chunk = 128, .centroids = 2048}}}) {
    const Shape narrow{.heads = width / 16, .dim = 16, .time = time, .batch = batch};
    const Shape wide{.heads = width / 64, .dim = 64, .time = time, .batch = batch};
    both(narrow, options);
    both(wide, options);
    const std::string sizes = fmt::format("B{} T{} L{} N{}", batch, time, options.chunk, options.centroids);
    runner.compare("ovq forward, heads of 16 / heads of 64, " + sizes, forward_name(narrow, options),
                   forward_name(wide, options));
    runner.compare("ovq backward, heads of 16 / heads of 64, " + sizes, backward_name(narrow, options),
                   backward_name(wide, options));
  }
}

void run_baseline_cases(Runner& runner) {
  const OvqOptions options{.chunk = 128, .centroids = 2048};
  const Shape shape{.heads = 6, .dim = 128, .time = runner.quick() ? 1024 : 2048};
  const std::string name = "paper pseudo-code forward " + describe(shape, options);
  runner.run(
      name, [&] { check_paper_baseline(checked_shape(shape, options.chunk), options); },
      [&] {
        OvqProblem problem(shape, options);
        CaseResult result =
            runner.time([&] { paper_ovq_forward(problem.inputs, problem.o.view(), problem.assignments); },
                        ovq_flops_forward(shape, options));
        result.bytes_allocated.reset();  // it does not use the kernels' memory
        return result;
      });
  run_forward(runner, shape, options);
  runner.compare(fmt::format("paper pseudo-code / fused ovq forward, T{}", shape.time), name,
                 forward_name(shape, options));
}

}  // namespace ovq::bench
