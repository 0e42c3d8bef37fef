// ovq_attention: fused = composed of ATen calls = the kernels' plain loops, outputs, states and all gradients.
#include "ovq/ops/ovq_attention.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/ops/ovq_fixtures.h"

namespace ovq::ops::test {
namespace {

void expect_ovq_paths_agree(const OvqCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const OvqProblem problem(c);
  const Results fast = fused(problem), exact = plain(problem, at::kDouble);
  EXPECT_TRUE(same_bits(fast.at("o"), problem.kernel_o)) << "the op and the kernel";
  expect_equal(exact, by_plain_loops(problem));
  expect_calibrated(fast, plain(problem, at::kFloat), exact, magnitudes(problem.inputs));
}

std::vector<kernels::OvqOptions> variants() { return kernels::test::option_variants(8, 12); }

TEST(OvqAttentionOp, Options) {
  for (const auto& options : variants()) {
    expect_ovq_paths_agree({.shape = {.query_heads = 4, .value_dim = 5}, .options = options});
  }
}

TEST(OvqAttentionOp, PackedSequences) {
  const Shape shape{.batch = 1, .time = 60, .query_heads = 4, .value_dim = 6};
  for (const auto& options : variants()) {
    expect_ovq_paths_agree({.shape = shape, .options = options, .cu_seqlens = {0, 13, 13, 53, 60}});
  }
}

// Gradients flow into the incoming states, and through the states between the pieces.
TEST(OvqAttentionOp, IncomingStatesAndPieces) {
  uint64_t seed = 1;
  for (const auto& options : variants()) {
    for (const int64_t prefix : {0, 5, 20}) {
      ++seed;
      expect_ovq_paths_agree({.shape = {.time = 30, .query_heads = 4, .value_dim = 5},
                              .options = options,
                              .prefix = prefix,
                              .pieces = 1 + static_cast<int64_t>(seed % 4),
                              .seed = seed});
    }
  }
}

TEST(OvqAttentionOp, IncomingStatesAndPiecesOfPackedSequences) {
  uint64_t seed = 1;
  for (const auto& options : variants()) {
    ++seed;
    expect_ovq_paths_agree({.shape = {.batch = 1, .time = 50, .value_dim = 7},
                            .options = options,
                            .cu_seqlens = {0, 17, 17, 50},
                            .prefix = 11,
                            .pieces = 3,
                            .seed = seed});
  }
}

TEST(OvqAttentionOp, RandomShapes) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    kernels::test::Random random(seed);
    const auto pick = [&](std::vector<int64_t> values) {
      return values[random.below(static_cast<int64_t>(values.size()))];
    };
    const int64_t kv_heads = pick({1, 2, 3});
    const Shape shape{.batch = pick({1, 2, 3}),
                      .time = pick({1, 7, 8, 9, 31, 64, 100}),
                      .query_heads = kv_heads * pick({1, 2, 4}),
                      .kv_heads = kv_heads,
                      .key_dim = pick({2, 8, 16, 30, 64}),
                      .value_dim = pick({1, 8, 15, 64})};
    const auto options = kernels::test::option_variants(pick({1, 8, 16, 33}), pick({1, 10, 200}));
    expect_ovq_paths_agree({.shape = shape,
                            .options = options[random.below(static_cast<int64_t>(options.size()))],
                            .prefix = pick({0, 0, 3, 40}),
                            .pieces = pick({1, 2, 4}),
                            .seed = seed});
  }
}

TEST(OvqAttentionOp, CopiesOfStatesLeaveTheGraph) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const std::vector<Tensor> x = leaves(make_inputs({}, 1), dtype);
    const OvqResult result = ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = 12}, {}, {});
    EXPECT_TRUE(result.states[0]->tensors().keys.requires_grad());
    EXPECT_FALSE(result.states[0]->clone()->tensors().keys.requires_grad());
    EXPECT_FALSE(result.states[0]->detach()->tensors().keys.requires_grad());
    EXPECT_TRUE(at::equal(result.states[0]->clone()->tensors().keys, result.states[0]->tensors().keys));
  }
}

TEST(OvqAttentionOp, TokensThatWaitDoNotFollowTheInputs) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    std::vector<Tensor> x = make_inputs({}, 1);
    for (Tensor& tensor : x) tensor = tensor.to(dtype);
    const auto result = ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = 12}, {}, {});
    const Tensor before = result.states[0]->tensors().pending_keys.clone();
    ASSERT_GT(before.numel(), 0);
    x[1].zero_();
    EXPECT_TRUE(at::equal(result.states[0]->tensors().pending_keys, before));
  }
}

TEST(OvqAttentionOp, ErrorsNameTheCall) {
  const std::vector<Tensor> x = make_inputs({}, 1);
  const auto states = ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8}, {}, {}).states;
  const auto first = [](const Tensor& tensor) { return tensor.slice(0, 0, 1); };
  using kernels::test::throws_naming;
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "step", [&] { ovq_step(first(x[0]), first(x[1]), first(x[2]), x[3], states); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "ovq_attention", [&] { ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 9}, {}, states); }));
}

}  // namespace
}  // namespace ovq::ops::test
