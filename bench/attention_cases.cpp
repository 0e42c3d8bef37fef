#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "bench/cases.h"
#include "bench/check.h"
#include "bench/flops.h"
#include "bench/tensor.h"
#include "ovq/kernels/attention.h"

namespace ovq::bench {
namespace {

constexpr int64_t kCheckedTime = 323;

std::string name(const char* direction, const Shape& shape, int64_t window) {
  const std::string suffix = window > 0 ? fmt::format(" window {}", window) : "";
  return fmt::format("attention {} H{} d{} T{}{}", direction, shape.heads, shape.dim, shape.time, suffix);
}

void check(Shape shape, int64_t window) {
  shape.time = kCheckedTime;
  check_attention(shape, window);
}

struct AttentionProblem {
  AttentionProblem(const Shape& shape, int64_t window)
      : tensors(shape, 1),
        o(shape),
        lse(per_row(shape)),
        inputs{.q = tensors.q.view(),
               .k = tensors.k.view(),
               .v = tensors.v.view(),
               .beta = tensors.beta,
               .window = window} {}
  void forward() { kernels::attention_forward(inputs, {.o = o.view(), .lse = lse.view()}); }

  Inputs tensors;
  Tensor o, lse;
  kernels::AttentionInputs inputs;
};

void run_forward(Runner& runner, const Shape& shape, int64_t window) {
  runner.run(
      name("forward", shape, window), [&] { check(shape, window); },
      [&] {
        AttentionProblem problem(shape, window);
        return runner.time([&] { problem.forward(); }, attention_flops_forward(shape, window));
      });
}

void run_backward(Runner& runner, const Shape& shape, int64_t window) {
  runner.run(
      name("backward", shape, window), [&] { check(shape, window); },
      [&] {
        AttentionProblem problem(shape, window);
        problem.forward();
        const Tensor d_o = normal(shape, 9);
        Gradients gradients(shape);
        return runner.time(
            [&] {
              kernels::attention_backward(problem.inputs, {.o = problem.o.view(), .lse = problem.lse.view()},
                                          d_o.view(),
                                          {.d_q = gradients.q.view(),
                                           .d_k = gradients.k.view(),
                                           .d_v = gradients.v.view(),
                                           .d_beta = gradients.beta});
            },
            attention_flops_backward(shape, window));
      });
}

}  // namespace

void run_attention_cases(Runner& runner) {
  const Shape full{.heads = 6, .dim = 128, .time = runner.quick() ? 2048 : 4096};
  run_forward(runner, full, 0);
  run_backward(runner, full, 0);

  constexpr int64_t kWindow = 128;
  const auto at = [&](int64_t factor) { return Shape{.heads = 6, .dim = 128, .time = factor * full.time}; };
  for (const int64_t factor : {1, 2, 4}) run_forward(runner, at(factor), kWindow);
  for (const int64_t factor : {2, 4})
    runner.compare(fmt::format("attention forward window {}, time at T{} / T{}", kWindow, at(factor).time, full.time),
                   name("forward", at(factor), kWindow), name("forward", full, kWindow));
  run_backward(runner, full, kWindow);

  // A short window, as small models have.
  const Shape small{.heads = 6, .dim = 64, .time = full.time};
  run_forward(runner, small, 8);
  run_backward(runner, small, 8);
}

}  // namespace ovq::bench
