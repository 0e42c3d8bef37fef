#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "bench/cases.h"
#include "bench/check.h"
#include "bench/flops.h"
#include "bench/probe.h"
#include "bench/tensor.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/attention/attention.h"

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
  // Only the last token.
  void decode(const Tensor& to) {
    kernels::AttentionInputs token = inputs;
    token.query_offset = inputs.q.time - 1;
    token.q = tensors.q.slice(token.query_offset, 1);
    kernels::attention_forward(token, {.o = to.view()});
  }

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

// The last token alone must equal the last of a whole call, bit for bit.
void check_decode(Shape shape) {
  check(shape, 0);
  shape.time = kCheckedTime;
  AttentionProblem problem(shape, 0);
  problem.forward();
  const Tensor o({.heads = shape.heads, .dim = shape.dim, .time = 1});
  problem.decode(o);
  if (!std::equal(o.data(), o.data() + o.size(), problem.o.slice(shape.time - 1, 1).data)) {
    throw Mismatch("the last token alone differs from the last of a whole call");
  }
}

// A step reads all keys and values once. Steps alternate with plain reads of the same memory.
void run_decode(Runner& runner, const Shape& shape) {
  runner.run(
      fmt::format("attention decode one token H{} d{} T{}", shape.heads, shape.dim, shape.time),
      [&] { check_decode(shape); },
      [&] {
        AttentionProblem problem(shape, 0);
        const Tensor o({.heads = shape.heads, .dim = shape.dim, .time = 1});
        const std::span<const float> memory[] = {
            {problem.tensors.k.data(), static_cast<size_t>(problem.tensors.k.size())},
            {problem.tensors.v.data(), static_cast<size_t>(problem.tensors.v.size())}};
        const int64_t allocated = bytes_allocated([&] { problem.decode(o); });
        const auto [steps, reads] = alternate(
            {.max_rounds = runner.quick() ? 5 : 20}, [&] { problem.decode(o); },
            [&] { read_seconds(memory, kernels::max_threads()); });
        const auto bytes = static_cast<double>(problem.tensors.k.nbytes() + problem.tensors.v.nbytes());
        return CaseResult{.timing = steps,
                          .bytes_allocated = allocated,
                          .figures = {{"keys and values", bytes, "bytes"},
                                      {"keys and values / median step", bytes / steps.median, "bytes/s"},
                                      {"share of median plain reads", 100 * reads.median / steps.median, "%"}}};
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

  run_decode(runner, {.heads = 6, .dim = 128, .time = runner.quick() ? 16384 : 65536});

  // A short window, as in small models.
  const Shape small{.heads = 6, .dim = 64, .time = full.time};
  run_forward(runner, small, 8);
  run_backward(runner, small, 8);
}

}  // namespace ovq::bench
