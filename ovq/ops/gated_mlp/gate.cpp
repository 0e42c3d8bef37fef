#include "ovq/ops/gated_mlp/gate.h"

#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels {
namespace {

constexpr const char* kGatedMlp = "gated_mlp";
constexpr int64_t kGateBlock = 16;

}  // namespace

void gate_forward(std::span<const float> gate_up, int64_t width, std::span<float> a) {
  const int64_t rows = check_rows(kGatedMlp, "gate_up", gate_up, 2 * width);
  check_size(kGatedMlp, "a", a, rows * width);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, kGateBlock, 4 * width, [&](int64_t begin, int64_t end) {
    kernels.gate(gate_up.data() + begin * 2 * width, end - begin, width, a.data() + begin * width);
  });
}

void gate_backward(std::span<const float> gate_up, int64_t width, std::span<float> d_a, std::span<float> d_gate_up) {
  const int64_t rows = check_rows(kGatedMlp, "gate_up", gate_up, 2 * width);
  check_size(kGatedMlp, "d_a", d_a, rows * width);
  check_size(kGatedMlp, "d_gate_up", d_gate_up, rows * 2 * width);
  const auto& kernels = detail::row_kernels();
  parallel_blocks(rows, kGateBlock, 8 * width, [&](int64_t begin, int64_t end) {
    kernels.gate_backward(gate_up.data() + begin * 2 * width, end - begin, width, d_a.data() + begin * width,
                          d_gate_up.data() + begin * 2 * width);
  });
}

}  // namespace ovq::kernels
