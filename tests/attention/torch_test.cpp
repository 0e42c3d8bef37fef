// attention = the plain loops of reference.h, output and gradients.
#include "ovq/ops/attention/torch.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "ovq/ops/attention/reference.h"
#include "ovq/ops/torch/tensor_view.h"
#include "tests/core/fixtures.h"
#include "tests/ops/fixtures.h"

namespace ovq::ops::test {
namespace {

namespace reference = kernels::reference;

struct AttentionCase {
  Shape shape;  // time: of the keys
  int64_t window = 0, query_offset = 0;
  std::vector<int64_t> cu_seqlens;  // empty: not packed
  uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  const auto& [batch, time, query_heads, kv_heads, key_dim, value_dim] = c.shape;
  out << "batch " << batch << ", time " << time << ", heads " << query_heads << "/" << kv_heads << ", dims " << key_dim
      << "/" << value_dim << ", window " << c.window << ", offset " << c.query_offset;
  for (int64_t offset : c.cu_seqlens) out << ", " << offset;
  return out;
}

struct AttentionProblem {
  explicit AttentionProblem(const AttentionCase& c) : c(c), inputs(make_inputs(c.shape, c.seed)) {
    inputs[0] = inputs[0].slice(1, c.query_offset).contiguous();
    d_o = normal({c.shape.batch, c.shape.time - c.query_offset, c.shape.query_heads, c.shape.value_dim}, c.seed + 7);
  }
  AttentionCase c;
  std::vector<Tensor> inputs;
  Tensor d_o;
};

Results through_op(const AttentionProblem& problem) {
  const AttentionCase& c = problem.c;
  const std::vector<Tensor> x = leaves(problem.inputs, at::kFloat);
  c10::optional<Tensor> cu_seqlens;
  if (!c.cu_seqlens.empty()) cu_seqlens = at::tensor(c.cu_seqlens, at::kLong);
  const Tensor o = attention(x[0], x[1], x[2], x[3], c.window, c.query_offset, cu_seqlens);
  const std::vector<Tensor> d = gradients_of({o}, {problem.d_o}, x);
  return {{"o", o}, {"d_q", d[0]}, {"d_k", d[1]}, {"d_v", d[2]}, {"d_beta", d[3]}};
}

// Adds a result of the plain loops to its place in the tensor.
template <class Scalar>
void add(Tensor& to, int64_t batch, int64_t head, int64_t first, const reference::Matrix<Scalar>& rows) {
  to.select(0, batch).slice(0, first, first + rows.rows).select(1, head) +=
      tensor_of(rows.data, {rows.rows, rows.columns});
}

template <class Scalar>
Results by_plain_loops(const AttentionProblem& problem) {
  const AttentionCase& c = problem.c;
  const Tensor &q = problem.inputs[0], &k = problem.inputs[1], &v = problem.inputs[2], &beta = problem.inputs[3];
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), c10::CppTypeToScalarType<Scalar>::value); };
  Tensor o = zeros(problem.d_o), d_q = zeros(q), d_k = zeros(k), d_v = zeros(v), d_beta = zeros(beta);
  const int64_t group = c.shape.query_heads / c.shape.kv_heads;
  const std::vector<int64_t> bounds = c.cu_seqlens.empty() ? std::vector<int64_t>{0, c.shape.time} : c.cu_seqlens;
  for (int64_t b = 0; b < c.shape.batch; ++b) {
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      const int64_t first = bounds[s], keys = bounds[s + 1] - first, queries = keys - c.query_offset;
      for (int64_t h = 0; h < c.shape.query_heads; ++h) {
        const reference::AttentionHead<Scalar> head{reference::load<Scalar>(view_of(q), b, h, first, queries),
                                                    reference::load<Scalar>(view_of(k), b, h / group, first, keys),
                                                    reference::load<Scalar>(view_of(v), b, h / group, first, keys),
                                                    beta[h].item<Scalar>(),
                                                    c.window,
                                                    c.query_offset};
        const auto forward = reference::attention_forward(head);
        const auto backward = reference::attention_backward(
            head, forward, reference::load<Scalar>(view_of(problem.d_o), b, h, first, queries));
        add(o, b, h, first, forward.o);
        add(d_q, b, h, first, backward.d_q);
        add(d_k, b, h / group, first, backward.d_k);
        add(d_v, b, h / group, first, backward.d_v);
        d_beta[h] += backward.d_beta;
      }
    }
  }
  return {{"o", o}, {"d_q", d_q}, {"d_k", d_k}, {"d_v", d_v}, {"d_beta", d_beta}};
}

void expect_plain_loops(const AttentionCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const AttentionProblem problem(c);
  expect_calibrated(through_op(problem), by_plain_loops<float>(problem), by_plain_loops<double>(problem),
                    magnitudes(problem.inputs));
}

TEST(AttentionOp, Window) {
  for (const int64_t window : {0, 1, 8, 100}) expect_plain_loops({.window = window});
}

TEST(AttentionOp, QueryOffset) {
  expect_plain_loops({.query_offset = 30});
  expect_plain_loops({.shape = {.query_heads = 4}, .window = 9, .query_offset = 44});
}

TEST(AttentionOp, PackedSequences) {
  const Shape shape{.batch = 1, .time = 60, .query_heads = 4, .value_dim = 5};
  for (const int64_t window : {0, 7})
    expect_plain_loops({.shape = shape, .window = window, .cu_seqlens = {0, 13, 13, 53, 60}});
}

TEST(AttentionOp, RandomShapes) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    kernels::test::Random random(seed);
    const auto pick = [&](std::vector<int64_t> values) {
      return values[random.below(static_cast<int64_t>(values.size()))];
    };
    const int64_t kv_heads = pick({1, 2, 3});
    expect_plain_loops({.shape = {.batch = pick({1, 2, 3}),
                                  .time = pick({1, 7, 8, 9, 31, 64, 129}),
                                  .query_heads = kv_heads * pick({1, 2, 4}),
                                  .kv_heads = kv_heads,
                                  .key_dim = pick({1, 8, 15, 16, 64}),
                                  .value_dim = pick({1, 8, 17, 64})},
                        .window = pick({0, 3, 16, 50}),
                        .seed = seed});
  }
}

// Converted to float32 and back.
TEST(AttentionOp, HalfPrecision) {
  const std::vector<Tensor> x = make_inputs({.query_heads = 4}, 3);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    std::vector<Tensor> narrow, wide;
    for (const Tensor& tensor : x) narrow.push_back(tensor.to(type).requires_grad_());
    for (const Tensor& tensor : narrow) wide.push_back(tensor.detach().to(at::kFloat).requires_grad_());
    const Tensor o = attention(narrow[0], narrow[1], narrow[2], narrow[3], 9);
    const Tensor expected = attention(wide[0], wide[1], wide[2], wide[3], 9);
    EXPECT_EQ(o.scalar_type(), type);
    EXPECT_TRUE(at::equal(o, expected.to(type)));
    const auto d = gradients_of({o}, {at::ones_like(o)}, narrow);
    const auto d_expected = gradients_of({expected}, {at::ones_like(expected)}, wide);
    for (size_t i = 0; i < d.size(); ++i) EXPECT_TRUE(at::equal(d[i], d_expected[i].to(type))) << i;
  }
}

TEST(AttentionOp, ErrorsSayForWhatThereAreKernels) {
  const std::vector<Tensor> x = make_inputs({}, 1);
  using kernels::test::throws_naming;
  const auto call = [&](const auto& as) { return [&, as] { attention(as(x[0]), as(x[1]), as(x[2]), as(x[3])); }; };
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "[attention] q is Double on cpu; the kernels take float32, bfloat16 and half on the CPU",
      call([](const Tensor& t) { return t.to(at::kDouble); })));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("[attention] q is Float on meta",
                                                   call([](const Tensor& t) { return t.to(at::kMeta); })));
}

}  // namespace
}  // namespace ovq::ops::test
