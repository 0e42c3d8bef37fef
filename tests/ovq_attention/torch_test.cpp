// ovq_attention: fused = composed of ATen calls = the kernels' plain loops, outputs, states and all gradients.
#include "ovq/ops/ovq_attention/torch.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/ovq_attention/torch_fixtures.h"

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

// Gradients flow into the incoming states and through the states between pieces.
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

// Including the assignments: in double only a tie could make them differ.
TEST(OvqAttentionWeights, ComposedEqualsThePlainLoops) {
  namespace kt = kernels::test;
  for (const kernels::OvqOptions& options : variants()) {
    if (!options.weighted) continue;
    SCOPED_TRACE(testing::Message() << OvqCase{.options = options});
    for (const std::vector<int64_t>& cu_seqlens : {std::vector<int64_t>{}, {0, 13, 13, 53, 60}}) {
      const Shape shape{.batch = cu_seqlens.empty() ? 2 : 1, .time = 60, .query_heads = 4, .value_dim = 5};
      std::vector<Tensor> inputs = make_inputs(shape, 3);
      inputs.push_back(make_weights(shape, 3));
      const kernels::OvqInputs in = {.q = view_of(inputs[0]),
                                     .k = view_of(inputs[1]),
                                     .v = view_of(inputs[2]),
                                     .beta = span_of(inputs[3]),
                                     .weights = view_of(inputs[4].unsqueeze(-1)),
                                     .options = options,
                                     .cu_seqlens = cu_seqlens};
      const Tensor d_o = normal({shape.batch, shape.time, shape.query_heads, shape.value_dim}, 4);
      kt::OvqBackwardProblem backward{
          {}, kt::Tensor({shape.batch, shape.time, shape.query_heads, shape.value_dim}), {}};
      std::copy_n(d_o.data_ptr<float>(), d_o.numel(), backward.d_o.view().data);
      const auto forward = kt::expected_forward<double>(in);
      const auto gradients = kt::expected_backward(in, forward, backward);

      const std::vector<Tensor> x = leaves(inputs, at::kDouble);
      c10::optional<Tensor> offsets;
      if (!cu_seqlens.empty()) offsets = at::tensor(cu_seqlens, at::kLong);
      const Tensor o = ovq_attention(x[0], x[1], x[2], x[3], options, offsets, x[4]);
      const std::vector<Tensor> d = gradients_of({o}, {d_o}, x);
      expect_equal({{"o", o}, {"d_q", d[0]}, {"d_k", d[1]}, {"d_v", d[2]}, {"d_beta", d[3]}, {"d_weights", d[4]}},
                   {{"o", tensor_of(forward.o, o.sizes())},
                    {"d_q", tensor_of(gradients.d_q, x[0].sizes())},
                    {"d_k", tensor_of(gradients.d_k, x[1].sizes())},
                    {"d_v", tensor_of(gradients.d_v, x[2].sizes())},
                    {"d_beta", tensor_of(gradients.d_beta, x[3].sizes())},
                    {"d_weights", tensor_of(gradients.d_weights, x[4].sizes())}});
    }
  }
}

TEST(OvqAttentionWeights, OnesChangeNothing) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const PlainPath plain;
    for (const auto& options : variants()) {
      if (options.rate || options.weighted) continue;
      const std::vector<Tensor> x = leaves(make_inputs({.time = 100}, 5), dtype);
      const Tensor ones = at::ones({2, 100, 2}, dtype);
      const Tensor without = ovq_attention(x[0], x[1], x[2], x[3], options);
      const Tensor with = ovq_attention(x[0], x[1], x[2], x[3], options, {}, ones);
      EXPECT_TRUE(at::equal(with, without));
      const Tensor d_o = normal(with.sizes(), 6);
      const auto d_with = gradients_of({with}, {d_o}, x), d_without = gradients_of({without}, {d_o}, x);
      for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(at::allclose(d_with[i], d_without[i], 1e-6, 1e-7));
    }
  }
}

TEST(OvqAttentionWeights, PiecesAreOnePass) {
  for (const auto& options : variants()) {
    if (!options.weighted) continue;
    const std::vector<Tensor> inputs = make_inputs({}, 7);
    std::vector<Tensor> x = leaves(inputs, at::kDouble);
    x.push_back(make_weights({}, 7).to(at::kDouble).requires_grad_());
    const auto [whole, final_states] = ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, {}, x[4]);
    const auto all = gradients_of({whole, final_states[0]->counts()},
                                  {at::ones_like(whole), at::ones_like(final_states[0]->counts())}, x);
    std::vector<StatePtr> states;
    std::vector<Tensor> parts;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 16}, {16, 45}}) {
      const auto part = [&](const Tensor& tensor) { return tensor.slice(1, begin, end); };
      auto result = ovq_attention_with_state(part(x[0]), part(x[1]), part(x[2]), x[3], options, {}, states, part(x[4]));
      states = result.states;
      parts.push_back(result.o);
    }
    const Tensor o = at::cat(parts, 1);
    EXPECT_TRUE(at::allclose(o, whole, 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(states[0]->counts(), final_states[0]->counts(), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(states[0]->pending_weights(), final_states[0]->pending_weights(), 0, 0));
    const auto pieces =
        gradients_of({o, states[0]->counts()}, {at::ones_like(o), at::ones_like(states[0]->counts())}, x);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(at::allclose(pieces[i], all[i], 1e-10, 1e-10)) << i;
  }
}

TEST(OvqAttentionWeights, BadOnesAreNamed) {
  const std::vector<Tensor> x = make_inputs({}, 1);
  const Tensor weights = make_weights({}, 1);
  const kernels::OvqOptions options{.chunk = 8};
  const auto call = [&](const Tensor& given) { ovq_attention(x[0], x[1], x[2], x[3], options, {}, given); };
  using kernels::test::throws_naming;
  for (const double bad : {0.0, -1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Tensor given = weights.clone();
    given[1][44][1] = bad;
    EXPECT_TRUE(throws_naming<std::invalid_argument>("weights", [&] { call(given); })) << bad;
  }
  EXPECT_TRUE(throws_naming<std::invalid_argument>("weights", [&] { call(weights.slice(1, 1)); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("weights", [&] { call(weights.unsqueeze(-1)); }));
  EXPECT_TRUE(throws_naming<c10::TypeError>("weights", [&] { call(weights.to(at::kLong) + 1); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "rate", [&] { ovq_attention(x[0], x[1], x[2], x[3], {.chunk = 8, .rate = 0.1f}, {}, weights); }));
  // A state continues on the path it was made by.
  const PlainPath plain;
  const auto with = ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, {}, weights).states;
  const auto without = ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, {}).states;
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "missing", [&] { ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, with); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "given", [&] { ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, without, weights); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("missing", [&] { ovq_step(x[0], x[1], x[2], x[3], with); }));
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

TEST(OvqAttentionOp, StatesStoredAsBfloat16) {
  const std::vector<Tensor> x = make_inputs({}, 1);
  const kernels::OvqOptions options{.chunk = 8, .centroids = 12};
  const auto run = [&](const std::vector<Tensor>& in, const std::vector<StatePtr>& states) {
    return ovq_attention_with_state(in[0], in[1], in[2], in[3], options, {}, states, {}, Backend::automatic,
                                    kernels::StateDtype::bfloat16);
  };
  const OvqResult narrow = run(x, {});
  EXPECT_EQ(narrow.states[0]->dtype(), at::kBFloat16);
  EXPECT_EQ(narrow.states[0]->tensors().keys.scalar_type(), at::kBFloat16);
  EXPECT_EQ(narrow.states[0]->tensors().pending_keys.scalar_type(), at::kFloat);
  EXPECT_EQ(run(x, narrow.states).states[0]->dtype(), at::kBFloat16);

  const StatePtr wide = narrow.states[0]->to(kernels::StateDtype::float32);
  EXPECT_TRUE(at::equal(wide->tensors().values, narrow.states[0]->tensors().values.to(at::kFloat)));
  EXPECT_EQ(run(x, {wide}).states[0]->dtype(), at::kFloat) << "a state that is given keeps its dtype";
  EXPECT_TRUE(
      at::equal(State::from_bytes(narrow.states[0]->to_bytes())->tensors().keys, narrow.states[0]->tensors().keys));

  using kernels::test::throws_naming;
  const std::vector<Tensor> with_gradients = leaves(x, at::kFloat);
  EXPECT_TRUE(throws_naming<std::invalid_argument>("bfloat16", [&] { run(with_gradients, {}); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("bfloat16", [&] { run(with_gradients, narrow.states); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("bfloat16", [&] { run(leaves(x, at::kDouble), {}); }));
}

// A call has a single N: states with different N must not silently take that of the first.
TEST(OvqAttentionOp, StatesOfOneStepHaveOneLimit) {
  const std::vector<Tensor> x = make_inputs({.batch = 1}, 1);
  const auto state = [&](int64_t centroids, Backend backend) {
    return ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = centroids}, {}, {}, {}, backend)
        .states[0];
  };
  for (const Backend backend : {Backend::fused, Backend::composed}) {
    const std::vector<StatePtr> states = {state(12, backend), state(20, backend)};
    const auto step = [&](const std::vector<StatePtr>& given) {
      ovq_step(x[0].slice(1, 0, 2), x[1].slice(1, 0, 2), x[2].slice(1, 0, 2), x[3], given, at::tensor({0, 1, 2}));
    };
    using kernels::test::throws_naming;
    EXPECT_TRUE(throws_naming<std::invalid_argument>("[step] states[1] has centroids 20; must equal states[0]'s 12",
                                                     [&] { step(states); }));
    EXPECT_EQ(states[1]->options().centroids, 20);
    EXPECT_EQ(states[0]->position(), 45);
    step({states[0], state(12, backend)});
    EXPECT_EQ(states[0]->position(), 46);
  }
}

// Steps use the path by which the states were made, whatever path new states would take.
TEST(OvqAttentionOp, StepsGoOnWithComposedStates) {
  std::vector<Tensor> x = make_inputs({}, 1);
  const auto part = [&](size_t i, int64_t begin, int64_t end) { return x[i].slice(1, begin, end); };
  const kernels::OvqOptions options{.chunk = 8, .centroids = 12};
  const Tensor whole = ovq_attention(x[0], x[1], x[2], x[3], options, {}, {}, Backend::composed);
  const auto states = ovq_attention_with_state(part(0, 0, 20), part(1, 0, 20), part(2, 0, 20), x[3], options, {}, {},
                                               {}, Backend::composed)
                          .states;
  for (int64_t t = 20; t < 45; ++t) {
    const Tensor o = ovq_step(part(0, t, t + 1), part(1, t, t + 1), part(2, t, t + 1), x[3], states);
    EXPECT_TRUE(at::allclose(o, whole.slice(1, t, t + 1), 1e-5, 1e-5)) << t;
  }
  EXPECT_FALSE(states[0]->fused());
  EXPECT_EQ(states[0]->position(), 45);
}

// Two keys that merge, by hand: the values are (3, 0) and (0, 4); their mean is read with their average norm.
TEST(OvqAttentionOp, ValueNormsOfTwoTokens) {
  const Tensor key = at::tensor({1.0, 0.0}, at::kDouble).reshape({1, 1, 1, 2}).repeat({1, 3, 1, 1});
  const Tensor value = at::tensor({3.0, 0.0, 0.0, 4.0, 9.0, 9.0}, at::kDouble).reshape({1, 3, 1, 2});
  const Tensor beta = at::ones({1}, at::kDouble);
  const kernels::OvqOptions options{.chunk = 2, .centroids = 1, .value_norms = true};
  const Tensor o = ovq_attention(key, key, value, beta, options);
  // The third token sees itself once and the pair, which counts twice: (1.5, 2) has norm 2.5 and is rescaled to 3.5.
  const Tensor expected = (2 * at::tensor({1.5, 2.0}, at::kDouble) * (3.5 / 2.5) + value[0][2][0]) / 3;
  EXPECT_TRUE(at::allclose(o[0][2][0], expected)) << o[0][2][0];
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
