// ovq_attention = the plain loops of reference.h: outputs, states and all gradients.
#include "ovq/ops/ovq_attention/torch.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/ovq_attention/torch_fixtures.h"

namespace ovq::ops::test {
namespace {

void expect_plain_loops(const OvqCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const OvqProblem problem(c);
  const Results actual = through_op(problem);
  EXPECT_TRUE(same_bits(actual.at("o"), problem.kernel_o)) << "the op and the kernel";
  expect_calibrated(actual, by_plain_loops<float>(problem), by_plain_loops<double>(problem),
                    magnitudes(problem.inputs));
}

std::vector<kernels::OvqOptions> variants() { return kernels::test::option_variants(8, 12); }

TEST(OvqAttentionOp, Options) {
  for (const auto& options : variants()) {
    expect_plain_loops({.shape = {.query_heads = 4, .value_dim = 5}, .options = options});
  }
}

TEST(OvqAttentionOp, PackedSequences) {
  const Shape shape{.batch = 1, .time = 60, .query_heads = 4, .value_dim = 6};
  for (const auto& options : variants()) {
    expect_plain_loops({.shape = shape, .options = options, .cu_seqlens = {0, 13, 13, 53, 60}});
  }
}

// Gradients flow into the incoming states and through the states between pieces.
TEST(OvqAttentionOp, IncomingStatesAndPieces) {
  uint64_t seed = 1;
  for (const auto& options : variants()) {
    for (const int64_t prefix : {0, 5, 20}) {
      ++seed;
      expect_plain_loops({.shape = {.time = 30, .query_heads = 4, .value_dim = 5},
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
    expect_plain_loops({.shape = {.batch = 1, .time = 50, .value_dim = 7},
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
    expect_plain_loops({.shape = shape,
                        .options = options[random.below(static_cast<int64_t>(options.size()))],
                        .prefix = pick({0, 0, 3, 40}),
                        .pieces = pick({1, 2, 4}),
                        .seed = seed});
  }
}

TEST(OvqAttentionWeights, OnesChangeNothing) {
  for (const auto& options : variants()) {
    if (options.rate || options.weighted) continue;
    const std::vector<Tensor> x = leaves(make_inputs({.time = 100}, 5), at::kFloat);
    const Tensor without = ovq_attention(x[0], x[1], x[2], x[3], options);
    const Tensor with = ovq_attention(x[0], x[1], x[2], x[3], options, {}, at::ones({2, 100, 2}));
    EXPECT_TRUE(same_bits(with, without));
    const Tensor d_o = normal(with.sizes(), 6);
    const auto d_with = gradients_of({with}, {d_o}, x), d_without = gradients_of({without}, {d_o}, x);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(at::allclose(d_with[i], d_without[i], 1e-6, 1e-7));
  }
}

TEST(OvqAttentionWeights, PiecesAreOnePass) {
  for (const auto& options : variants()) {
    if (!options.weighted) continue;
    std::vector<Tensor> x = leaves(make_inputs({}, 7), at::kFloat);
    x.push_back(make_weights({}, 7).requires_grad_());
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
    EXPECT_TRUE(same_bits(o, whole));
    EXPECT_TRUE(same_bits(states[0]->counts(), final_states[0]->counts()));
    EXPECT_TRUE(same_bits(states[0]->pending_weights(), final_states[0]->pending_weights()));
    const auto pieces =
        gradients_of({o, states[0]->counts()}, {at::ones_like(o), at::ones_like(states[0]->counts())}, x);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(at::allclose(pieces[i], all[i], 1e-4, 1e-5)) << i;
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
  const auto with = ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, {}, weights).states;
  const auto without = ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, {}).states;
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "missing", [&] { ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, with); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "given", [&] { ovq_attention_with_state(x[0], x[1], x[2], x[3], options, {}, without, weights); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("missing", [&] { ovq_step(x[0], x[1], x[2], x[3], with); }));
}

TEST(OvqAttentionOp, CopiesOfStatesLeaveTheGraph) {
  const std::vector<Tensor> x = leaves(make_inputs({}, 1), at::kFloat);
  const OvqResult result = ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = 12}, {}, {});
  EXPECT_TRUE(result.states[0]->tensors().keys.requires_grad());
  EXPECT_FALSE(result.states[0]->clone()->tensors().keys.requires_grad());
  EXPECT_FALSE(result.states[0]->detach()->tensors().keys.requires_grad());
  EXPECT_TRUE(at::equal(result.states[0]->clone()->tensors().keys, result.states[0]->tensors().keys));
}

TEST(OvqAttentionOp, TokensThatWaitDoNotFollowTheInputs) {
  const std::vector<Tensor> x = make_inputs({}, 1);
  const auto result = ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = 12}, {}, {});
  const Tensor before = result.states[0]->tensors().pending_keys.clone();
  ASSERT_GT(before.numel(), 0);
  x[1].zero_();
  EXPECT_TRUE(at::equal(result.states[0]->tensors().pending_keys, before));
}

TEST(OvqAttentionOp, StatesStoredAsBfloat16) {
  const std::vector<Tensor> x = make_inputs({}, 1);
  const kernels::OvqOptions options{.chunk = 8, .centroids = 12};
  const auto run = [&](const std::vector<Tensor>& in, const std::vector<StatePtr>& states) {
    return ovq_attention_with_state(in[0], in[1], in[2], in[3], options, {}, states, {}, kernels::StateDtype::bfloat16);
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
}

// A call has a single N: states with different N must not silently take that of the first.
TEST(OvqAttentionOp, StatesOfOneStepHaveOneLimit) {
  const std::vector<Tensor> x = make_inputs({.batch = 1}, 1);
  const auto state = [&](int64_t centroids) {
    return ovq_attention_with_state(x[0], x[1], x[2], x[3], {.chunk = 8, .centroids = centroids}, {}, {}).states[0];
  };
  const std::vector<StatePtr> states = {state(12), state(20)};
  const auto step = [&](const std::vector<StatePtr>& given) {
    ovq_step(x[0].slice(1, 0, 2), x[1].slice(1, 0, 2), x[2].slice(1, 0, 2), x[3], given, at::tensor({0, 1, 2}));
  };
  using kernels::test::throws_naming;
  EXPECT_TRUE(throws_naming<std::invalid_argument>("[step] states[1] has centroids 20; must equal states[0]'s 12",
                                                   [&] { step(states); }));
  EXPECT_EQ(states[1]->options().centroids, 20);
  EXPECT_EQ(states[0]->position(), 45);
  step({states[0], state(12)});
  EXPECT_EQ(states[0]->position(), 46);
}

TEST(OvqAttentionOp, StepsAreOnePass) {
  for (const auto& options : variants()) {
    const std::vector<Tensor> x = make_inputs({}, 1);
    const c10::optional<Tensor> weights = options.weighted ? make_weights({}, 1) : c10::optional<Tensor>();
    const Tensor whole = ovq_attention(x[0], x[1], x[2], x[3], options, {}, weights);
    const auto part = [&](const Tensor& all, int64_t begin, int64_t end) { return all.slice(1, begin, end); };
    const auto weights_of = [&](int64_t begin, int64_t end) {
      return weights ? part(*weights, begin, end) : c10::optional<Tensor>();
    };
    const auto states = ovq_attention_with_state(part(x[0], 0, 20), part(x[1], 0, 20), part(x[2], 0, 20), x[3], options,
                                                 {}, {}, weights_of(0, 20))
                            .states;
    for (int64_t t = 20; t < 45; ++t) {
      const Tensor o = ovq_step(part(x[0], t, t + 1), part(x[1], t, t + 1), part(x[2], t, t + 1), x[3], states, {},
                                weights_of(t, t + 1));
      EXPECT_TRUE(same_bits(o, whole.slice(1, t, t + 1))) << t;
    }
    EXPECT_EQ(states[0]->position(), 45);
  }
}

TEST(OvqAttentionOp, NoSequencesHaveNoStates) {
  const std::vector<Tensor> x = make_inputs({.batch = 1, .time = 0}, 1);
  const Tensor none = at::tensor({0}, at::kLong);
  for (const auto& options : variants()) {
    if (options.weighted) continue;
    const OvqResult result = ovq_attention_with_state(x[0], x[1], x[2], x[3], options, none, {});
    EXPECT_EQ(result.o.sizes(), at::IntArrayRef({1, 0, 2, 8}));
    EXPECT_TRUE(result.states.empty());
  }
  EXPECT_EQ(ovq_step(x[0], x[1], x[2], x[3], {}, none).sizes(), at::IntArrayRef({1, 0, 2, 8}));
}

// Two keys that merge, by hand: the values are (3, 0) and (0, 4); their mean is read with their average norm.
TEST(OvqAttentionOp, ValueNormsOfTwoTokens) {
  const Tensor key = at::tensor({1.0, 0.0}, at::kFloat).reshape({1, 1, 1, 2}).repeat({1, 3, 1, 1});
  const Tensor value = at::tensor({3.0, 0.0, 0.0, 4.0, 9.0, 9.0}, at::kFloat).reshape({1, 3, 1, 2});
  const Tensor beta = at::ones({1});
  const kernels::OvqOptions options{.chunk = 2, .centroids = 1, .value_norms = true};
  const Tensor o = ovq_attention(key, key, value, beta, options);
  // The third token sees itself once and the pair, which counts twice: (1.5, 2) has norm 2.5 and is rescaled to 3.5.
  const Tensor expected = (2 * at::tensor({1.5, 2.0}, at::kFloat) * (3.5 / 2.5) + value[0][2][0]) / 3;
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
  const auto wide = [&](size_t i) { return x[i].to(at::kDouble); };
  EXPECT_TRUE(throws_naming<std::invalid_argument>(
      "[step] q is Double on cpu; the kernels take float32, bfloat16 and half on the CPU",
      [&] { ovq_step(wide(0), wide(1), wide(2), wide(3), states); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("[ovq_attention] q is Float on meta", [&] {
    ovq_attention(x[0].to(at::kMeta), x[1].to(at::kMeta), x[2].to(at::kMeta), x[3].to(at::kMeta), {.chunk = 8});
  }));
}

}  // namespace
}  // namespace ovq::ops::test
