// Tensors of any strides give the same results as contiguous ones, bit for bit. q, k and v are not copied if their last
// dimension is contiguous, and copied once otherwise. Measured by the bytes that torch's allocator and the kernels'
// provide.
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/torch_memory.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "tests/ops/fixtures.h"

namespace ovq::ops::test {
namespace {

using bench::allocated_by;
using bench::AllocatedBytes;

constexpr Shape kShape{.batch = 2, .time = 45, .query_heads = 4, .kv_heads = 2, .key_dim = 8, .value_dim = 6};

struct Op {
  std::string name;
  std::function<Tensor(const std::vector<Tensor>&)> call;
  int64_t saved_bytes;  // for backward, beyond inputs and output
};

std::vector<Op> ops() {
  const int64_t lse = kShape.batch * kShape.time * kShape.query_heads * 4;
  const int64_t assignments = kShape.batch * kShape.time * kShape.kv_heads * 4;
  return {{"attention", [](const auto& x) { return attention(x[0], x[1], x[2], x[3], 9); }, lse},
          {"ovq_attention",
           [](const auto& x) { return ovq_attention(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = 12}); },
           lse + assignments}};
}

struct Layout {
  std::string name;
  std::function<Tensor(const Tensor&)> apply;  // the same values in another layout
  bool contiguous_rows = true;
};

std::vector<Layout> layouts() {
  const auto inside = [](const Tensor& x) {  // of a larger tensor
    Tensor wide = at::full({x.size(0) + 1, x.size(1) + 2, x.size(2) + 3, x.size(3) + 5}, NAN);
    Tensor part = wide.slice(0, 1).slice(1, 1, -1).slice(2, 2, -1).slice(3, 3, -2);
    return part.copy_(x);
  };
  const auto every_second = [](const Tensor& x) {
    Tensor part = at::full({x.size(0), x.size(1), x.size(2), 2 * x.size(3)}, NAN).slice(3, 0, c10::nullopt, 2);
    return part.copy_(x);
  };
  return {{"transposed", [](const Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }},
          {"batch inside", [](const Tensor& x) { return x.transpose(0, 1).contiguous().transpose(0, 1); }},
          {"sliced", inside},
          {"every second element", every_second, false},
          {"rows inside", [](const Tensor& x) { return x.transpose(2, 3).contiguous().transpose(2, 3); }, false}};
}

struct Outcome {
  Tensor o;
  std::vector<Tensor> gradients;
  AllocatedBytes inference, forward, backward;
};

// On one thread: with several, it is chance how many hold their memory at the same time.
Outcome run(const Op& op, const std::vector<Tensor>& inputs, const Tensor& d_o) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::vector<Tensor> x;
  for (const Tensor& tensor : inputs) x.push_back(tensor.detach().requires_grad_());
  Outcome outcome;
  outcome.inference = allocated_by([&] {
    const at::NoGradGuard no_grad;
    op.call(x);
  });
  outcome.forward = allocated_by([&] { outcome.o = op.call(x); });
  outcome.backward = allocated_by([&] { outcome.gradients = torch::autograd::grad({outcome.o}, x, {d_o}); });
  at::set_num_threads(threads);
  return outcome;
}

int64_t bytes(const Tensor& x) { return static_cast<int64_t>(x.numel() * x.element_size()); }
int64_t bytes(const std::vector<Tensor>& tensors) {
  int64_t sum = 0;
  for (const Tensor& x : tensors) sum += bytes(x);
  return sum;
}

void expect_same_results(const Outcome& actual, const Outcome& expected) {
  EXPECT_TRUE(same_bits(actual.o, expected.o));
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_TRUE(same_bits(actual.gradients[i], expected.gradients[i])) << "gradient " << i;
  }
}

// Expects only outputs, what backward needs, gradients, and `copies` bytes; inside the kernels as much as `dense` took.
void expect_bytes(const Op& op, const Outcome& actual, const Outcome& dense, const std::vector<Tensor>& inputs,
                  int64_t copies) {
  EXPECT_EQ(actual.inference.torch_total - copies, dense.inference.torch_total);
  EXPECT_EQ(actual.forward.torch_total, bytes(actual.o) + op.saved_bytes + copies);
  EXPECT_EQ(actual.backward.torch_total, bytes(inputs));
  EXPECT_EQ(actual.inference.kernels_peak, dense.inference.kernels_peak);
  EXPECT_EQ(actual.forward.kernels_peak, dense.forward.kernels_peak);
  EXPECT_EQ(actual.backward.kernels_peak, dense.backward.kernels_peak);
}

TEST(Strides, CountersCount) {
  const AllocatedBytes torch = allocated_by([] { at::empty({1000}); });
  EXPECT_EQ(torch.torch_total, 4000);
  EXPECT_EQ(torch.torch_peak, 4000);
  EXPECT_EQ(allocated_by([] { kernels::Buffer<float> buffer(1000); }).kernels_peak, 4000);
  const AllocatedBytes op = allocated_by([] { ops()[1].call(make_inputs(kShape, 1)); });
  EXPECT_GT(op.kernels_peak, 0) << "the library's counter and this program's are two";
}

TEST(Strides, NoCopyWhileRowsAreContiguous) {
  const std::vector<Tensor> inputs = make_inputs(kShape, 1);
  const Tensor d_o = normal({kShape.batch, kShape.time, kShape.query_heads, kShape.value_dim}, 9);
  for (const Op& op : ops()) {
    SCOPED_TRACE(op.name);
    const Outcome dense = run(op, inputs, d_o);
    EXPECT_LE(dense.inference.torch_total, bytes(dense.o) + op.saved_bytes);
    expect_bytes(op, dense, dense, inputs, 0);
    for (const Layout& layout : layouts()) {
      for (size_t changed = 0; changed <= 3; ++changed) {  // q, k or v alone; then all
        SCOPED_TRACE(testing::Message() << layout.name << ", input " << changed);
        std::vector<Tensor> x = inputs;
        int64_t copies = 0;
        for (size_t i = 0; i < 3; ++i) {
          if (changed != i && changed != 3) continue;
          x[i] = layout.apply(inputs[i]);
          ASSERT_FALSE(x[i].is_contiguous());
          if (!layout.contiguous_rows) copies += bytes(x[i]);
        }
        const Outcome odd = run(op, x, d_o);
        expect_same_results(odd, dense);
        expect_bytes(op, odd, dense, inputs, copies);
      }
    }
  }
}

TEST(Strides, ExpandedInputsAreReadInPlace) {
  const Tensor d_o = normal({kShape.batch, kShape.time, kShape.query_heads, kShape.value_dim}, 9);
  for (const Op& op : ops()) {
    for (const int64_t dim : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << op.name << ", dim " << dim);
      std::vector<Tensor> expanded = make_inputs(kShape, 1), dense = expanded;
      for (size_t i = 0; i < 3; ++i) {
        expanded[i] = expanded[i].slice(dim, 0, 1).expand(expanded[i].sizes());
        dense[i] = expanded[i].contiguous();
      }
      const Outcome expected = run(op, dense, d_o), actual = run(op, expanded, d_o);
      expect_same_results(actual, expected);
      expect_bytes(op, actual, expected, dense, 0);
    }
  }
}

TEST(Strides, GradientOfTheOutput) {
  const std::vector<Tensor> inputs = make_inputs(kShape, 1);
  const std::vector<int64_t> sizes = {kShape.batch, kShape.time, kShape.query_heads, kShape.value_dim};
  for (const Op& op : ops()) {
    SCOPED_TRACE(op.name);
    const Outcome dense = run(op, inputs, at::ones(sizes));
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(layout.name);
      const Outcome odd = run(op, inputs, layout.apply(at::ones(sizes)));
      expect_same_results(odd, dense);
      EXPECT_EQ(odd.backward.torch_total, bytes(inputs) + (layout.contiguous_rows ? 0 : bytes(dense.o)));
    }
    const Outcome single = run(op, inputs, at::ones({1}).expand(sizes));  // of a sum
    expect_same_results(single, dense);
    EXPECT_EQ(single.backward.torch_total, bytes(inputs) + bytes(dense.o));
  }
}

}  // namespace
}  // namespace ovq::ops::test
