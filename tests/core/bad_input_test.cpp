// Bad input throws std::invalid_argument that names the argument, leaves outputs untouched, and states byte for byte
// the same.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/ops/attention/attention.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// All arguments of a forward and its backward, valid until a test changes one.
struct Call {
  static constexpr int64_t kTokens = 20;

  Call()
      : problem({.batch = 2,
                 .tokens = kTokens + 11,
                 .query_heads = 4,
                 .kv_heads = 2,
                 .key_dim = 6,
                 .value_dim = 3,
                 .options = {.chunk = 8, .centroids = 10}}),
        o({2, kTokens, 4, 3}),
        lse({2, kTokens, 4, 1}),
        d_o({2, kTokens, 4, 3}),
        d_q({2, kTokens, 4, 6}),
        d_k({2, kTokens, 2, 6}),
        d_v({2, kTokens, 2, 3}) {
    states = problem.states();
    run_forward(problem.inputs(0, 11), states);
    inputs = problem.inputs(11, kTokens);
    std::vector<OvqState> later = states;
    const OvqForward forward = run_forward(inputs, later);
    saved_o = forward.o;
    saved_lse = forward.lse;
    forced = assignments = forward.assignments;
    d_beta.resize(4);
    d_o.fill(1.0f);
    outputs = {o.view(), lse.view(), assignments};
    saved = {saved_o.view(), saved_lse.view(), assignments, states};
    output_gradients = {d_o.view(), {}};
    gradients = {d_q.view(), d_k.view(), d_v.view(), d_beta, {}};
  }
  Call(const Call&) = delete;

  void forward() { ovq_attention_forward(inputs, outputs, states, forced_given ? forced : std::vector<int32_t>{}); }
  void backward() { ovq_attention_backward(inputs, saved, output_gradients, gradients); }

  OvqProblem problem;
  Tensor o, lse, d_o, d_q, d_k, d_v, saved_o, saved_lse;
  std::vector<float> d_beta;
  std::vector<int32_t> assignments, forced;
  bool forced_given = false;
  std::vector<OvqState> states;
  std::vector<float> beta;
  std::vector<int64_t> cu_seqlens;
  OvqInputs inputs;
  OvqOutputs outputs;
  OvqSaved saved;
  OvqOutputGradients output_gradients;
  OvqGradients gradients;
};

using Spoil = std::function<void(Call&)>;

void expect_forward_rejects(const std::string& name, const std::string& what, const Spoil& spoil) {
  SCOPED_TRACE(what);
  Call call;
  spoil(call);
  std::vector<std::string> before;
  for (const OvqState& state : call.states) before.push_back(bytes_of(state));
  const std::vector<float> o = call.o.values();
  const std::vector<int32_t> assignments = call.assignments;
  EXPECT_TRUE(throws_naming<std::invalid_argument>(name, [&] { call.forward(); }));
  EXPECT_TRUE(same_bits(call.o.values(), o));
  EXPECT_EQ(call.assignments, assignments);
  for (size_t s = 0; s < before.size(); ++s) EXPECT_EQ(bytes_of(call.states[s]), before[s]);
}

void expect_backward_rejects(const std::string& name, const std::string& what, const Spoil& spoil) {
  SCOPED_TRACE(what);
  Call call;
  spoil(call);
  const std::vector<float> d_q = call.d_q.values();
  EXPECT_TRUE(throws_naming<std::invalid_argument>(name, [&] { call.backward(); }));
  EXPECT_TRUE(same_bits(call.d_q.values(), d_q));
}

void expect_both_reject(const std::string& name, const std::string& what, const Spoil& spoil) {
  expect_forward_rejects(name, what, spoil);
  expect_backward_rejects(name, what, spoil);
}

TEST(BadInput, TheCallItselfIsRight) {
  Call call;
  EXPECT_NO_THROW(call.forward());
  Call other;
  other.forced_given = true;
  EXPECT_NO_THROW(other.forward());
  EXPECT_NO_THROW(Call().backward());
}

TEST(BadInput, Shapes) {
  expect_both_reject("k", "heads do not divide", [](Call& c) { c.inputs.k.heads = 3; });
  expect_both_reject("v", "other heads", [](Call& c) { c.inputs.v.heads = 1; });
  expect_both_reject("k", "other dim", [](Call& c) { c.inputs.k.dim = 5; });
  expect_both_reject("k", "other time", [](Call& c) { c.inputs.k.time = c.inputs.v.time = 19; });
  expect_both_reject("v", "other time", [](Call& c) { c.inputs.v.time = 19; });
  expect_both_reject("k", "other batch", [](Call& c) { c.inputs.k.batch = 1; });
  expect_both_reject("v", "other batch", [](Call& c) { c.inputs.v.batch = 1; });
  expect_both_reject("q", "negative time", [](Call& c) { c.inputs.q.time = c.inputs.k.time = c.inputs.v.time = -1; });
  expect_both_reject("k", "negative time", [](Call& c) { c.inputs.k.time = -1; });
  expect_both_reject("v", "negative time", [](Call& c) { c.inputs.v.time = -1; });
  expect_both_reject("q", "negative batch",
                     [](Call& c) { c.inputs.q.batch = c.inputs.k.batch = c.inputs.v.batch = -1; });
  expect_both_reject("k", "no heads", [](Call& c) { c.inputs.k.heads = c.inputs.v.heads = 0; });
  expect_both_reject("q", "negative heads", [](Call& c) { c.inputs.q.heads = -4; });
  expect_both_reject("q", "no dim", [](Call& c) { c.inputs.q.dim = c.inputs.k.dim = 0; });
  expect_both_reject("v", "no dim", [](Call& c) { c.inputs.v.dim = 0; });
  expect_both_reject("v", "negative dim", [](Call& c) { c.inputs.v.dim = -3; });
  expect_both_reject("q", "missing", [](Call& c) { c.inputs.q.data = nullptr; });
  expect_both_reject("k", "missing", [](Call& c) { c.inputs.k.data = nullptr; });
  expect_both_reject("v", "missing", [](Call& c) { c.inputs.v.data = nullptr; });
}

TEST(BadInput, Beta) {
  for (float bad : {3e38f, -3e38f, kNan, kInfinity, -kInfinity}) {
    expect_both_reject("beta", "not finite", [&](Call& c) {
      c.beta.assign(4, 1.0f);
      c.beta[3] = bad;
      c.inputs.beta = c.beta;
    });
  }
  for (size_t size : {0, 2, 5}) {
    expect_both_reject("beta", "size", [&](Call& c) {
      c.beta.assign(size, 1.0f);
      c.inputs.beta = c.beta;
    });
  }
}

TEST(BadInput, Weights) {
  const auto weigh = [](Call& c) -> Tensor& {
    c.problem.weights = Tensor({2, Call::kTokens, 2, 1});
    c.problem.weights.fill(0.5f);
    c.inputs.weights = c.problem.weights.view();
    c.inputs.options.weighted = true;
    c.states.assign(1, OvqState({2, 2, 6, 3}, c.inputs.options));
    c.assignments.assign(ovq_assignment_count(c.inputs, c.states), 0);
    c.outputs.assignments = c.assignments;
    c.saved.assignments = c.assignments;
    c.saved.initial = c.states;
    return c.problem.weights;
  };
  Call right;
  weigh(right);
  EXPECT_NO_THROW(right.forward());
  for (float bad : {0.0f, -0.0f, -1.0f, 1e38f, kNan, kInfinity}) {
    expect_both_reject("weights", "not positive and finite", [&](Call& c) { *weigh(c).row(1, 19, 1) = bad; });
  }
  expect_both_reject("weights", "missing", [&](Call& c) { weigh(c), c.inputs.weights = {}; });
  expect_both_reject("weights", "time", [&](Call& c) { weigh(c), c.inputs.weights.time = 19; });
  expect_both_reject("weights", "heads", [&](Call& c) { weigh(c), c.inputs.weights.heads = 4; });
  expect_both_reject("weights", "dim", [&](Call& c) { weigh(c), c.inputs.weights.dim = 2; });
  expect_both_reject("weights", "without the option", [&](Call& c) {
    weigh(c);
    c.inputs.options.weighted = false;
  });
  expect_both_reject("rate", "a constant one", [&](Call& c) { weigh(c), c.inputs.options.rate = 0.1f; });
  expect_both_reject("states", "without weights", [&](Call& c) {
    weigh(c);
    c.states.assign(1, OvqState({2, 2, 6, 3}, {.chunk = 8, .centroids = 10}));
    c.saved.initial = c.states;
  });
  expect_both_reject("states", "with weights", [&](Call& c) {
    c.states.assign(1, OvqState({2, 2, 6, 3}, {.chunk = 8, .centroids = 10, .weighted = true}));
    c.saved.initial = c.states;
  });
  const auto ready = [&](Call& c) {
    weigh(c);
    c.forward();
    c.saved.assignments = c.assignments;
    c.states.assign(1, OvqState({2, 2, 6, 3}, c.inputs.options));
    c.saved.initial = c.states;
    c.gradients.d_weights = c.problem.weights.view();
  };
  Call whole;
  ready(whole);
  EXPECT_NO_THROW(whole.backward());
  expect_backward_rejects("d_weights", "missing", [&](Call& c) { ready(c), c.gradients.d_weights = {}; });
  expect_backward_rejects("d_weights", "heads", [&](Call& c) { ready(c), c.gradients.d_weights.heads = 1; });
  const Tensor wrong({2, 3, 2, 2});
  const std::vector<OvqStateGradients<const float>> d_final{{.counts = wrong.view()}};
  expect_backward_rejects("d_final", "shape", [&](Call& c) { ready(c), c.output_gradients.d_final = d_final; });
  expect_backward_rejects("d_final", "without weights", [&](Call& c) { c.output_gradients.d_final = d_final; });
}

TEST(BadInput, Options) {
  struct BadOption {
    const char* name;
    std::function<void(OvqOptions&)> spoil;
  };
  const std::vector<BadOption> bad_options{
      {"centroids", [](OvqOptions& o) { o.centroids = 0; }},
      {"centroids", [](OvqOptions& o) { o.centroids = -5; }},
      {"chunk", [](OvqOptions& o) { o.chunk = 0; }},
      {"chunk", [](OvqOptions& o) { o.chunk = -8; }},
      {"chunk", [](OvqOptions& o) { o.chunk = std::numeric_limits<int64_t>::max(); }},
      {"growth", [](OvqOptions& o) { o.growth = static_cast<Growth>(9); }},
      {"new_centroids", [](OvqOptions& o) { o.new_centroids = static_cast<NewCentroids>(9); }},
      {"total_tokens", [](OvqOptions& o) { o.growth = Growth::linear; }},
      {"total_tokens", [](OvqOptions& o) { o.growth = Growth::linear, o.total_tokens = -1; }},
      {"rate", [](OvqOptions& o) { o.rate = 0.0f; }},
      {"rate", [](OvqOptions& o) { o.rate = -0.1f; }},
      {"rate", [](OvqOptions& o) { o.rate = 1.5f; }},
      {"rate", [](OvqOptions& o) { o.rate = kNan; }},
      {"rope_base", [](OvqOptions& o) { o.rope = true, o.rope_base = kNan; }},
      {"rope_base", [](OvqOptions& o) { o.rope = true, o.rope_base = 0.0f; }},
      {"rope_base", [](OvqOptions& o) { o.rope = true, o.rope_base = -10.0f; }},
      {"rope_base", [](OvqOptions& o) { o.rope = true, o.rope_base = kInfinity; }},
  };
  for (const BadOption& bad : bad_options) {
    expect_both_reject(bad.name, "option", [&](Call& c) { bad.spoil(c.inputs.options); });
    OvqOptions options;
    bad.spoil(options);
    EXPECT_TRUE(throws_naming<std::invalid_argument>(bad.name, [&] { OvqState({1, 1, 6, 3}, options); }));
  }
  expect_both_reject("dim", "rope with an odd one", [](Call& c) {
    c.inputs.options.rope = true;
    c.inputs.q.dim = c.inputs.k.dim = 5;
  });
}

TEST(BadInput, StateShapesAndLimits) {
  EXPECT_TRUE(throws_naming<std::invalid_argument>("batch", [] { OvqState({-1, 1, 6, 3}, {}); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("kv_heads", [] { OvqState({1, 0, 6, 3}, {}); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("key_dim", [] { OvqState({1, 1, 0, 3}, {}); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("value_dim", [] { OvqState({1, 1, 6, -3}, {}); }));
  OvqState state({1, 1, 6, 3}, {});
  EXPECT_TRUE(throws_naming<std::invalid_argument>("centroids", [&] { state.set_centroids(0); }));
  EXPECT_EQ(state.options().centroids, 2048);
}

TEST(BadInput, PackedOffsets) {
  const auto pack = [](std::vector<int64_t> cu_seqlens) {
    return [cu_seqlens](Call& c) {
      c.inputs.q.batch = c.inputs.k.batch = c.inputs.v.batch = 1;
      c.cu_seqlens = cu_seqlens;
      c.inputs.cu_seqlens = c.cu_seqlens;
    };
  };
  expect_both_reject("cu_seqlens", "decreasing", pack({0, 12, 8, 20}));
  expect_both_reject("cu_seqlens", "beyond the end and back", pack({0, 25, 20}));
  expect_both_reject("cu_seqlens", "not from 0", pack({1, 12, 20}));
  expect_both_reject("cu_seqlens", "negative", pack({0, -3, 20}));
  expect_both_reject("cu_seqlens", "short of the end", pack({0, 12, 19}));
  expect_both_reject("cu_seqlens", "past the end", pack({0, 12, 21}));
  expect_both_reject("cu_seqlens", "one offset", pack({0}));
  expect_both_reject("cu_seqlens", "a batch", [](Call& c) {
    c.cu_seqlens = {0, 20};
    c.inputs.cu_seqlens = c.cu_seqlens;
  });
}

TEST(BadInput, Outputs) {
  expect_forward_rejects("o", "missing", [](Call& c) { c.outputs.o = {}; });
  expect_forward_rejects("o", "time", [](Call& c) { c.outputs.o.time = 19; });
  expect_forward_rejects("o", "heads", [](Call& c) { c.outputs.o.heads = 2; });
  expect_forward_rejects("o", "dim", [](Call& c) { c.outputs.o.dim = 6; });
  expect_forward_rejects("lse", "dim", [](Call& c) { c.outputs.lse.dim = 2; });
  expect_forward_rejects("lse", "time", [](Call& c) { c.outputs.lse.time = 21; });
  expect_forward_rejects("assignments", "size",
                         [](Call& c) { c.outputs.assignments = c.outputs.assignments.first(5); });
}

TEST(BadInput, States) {
  const auto replace = [](const OvqShape& shape, const OvqOptions& options) {
    return [=](Call& c) {
      c.states.assign(1, OvqState(shape, options));
      c.saved.initial = c.states;
    };
  };
  const OvqOptions options{.chunk = 8, .centroids = 10};
  expect_both_reject("states", "batch", replace({1, 2, 6, 3}, options));
  expect_both_reject("states", "heads", replace({2, 4, 6, 3}, options));
  expect_both_reject("states", "key dim", replace({2, 2, 8, 3}, options));
  expect_both_reject("states", "value dim", replace({2, 2, 6, 4}, options));
  expect_both_reject("states", "chunk", replace({2, 2, 6, 3}, {.chunk = 16, .centroids = 10}));
  expect_both_reject("states", "growth", replace({2, 2, 6, 3}, {.chunk = 8, .centroids = 10, .growth = Growth::all}));
  expect_both_reject("states", "rate", replace({2, 2, 6, 3}, {.chunk = 8, .centroids = 10, .rate = 0.1f}));
  expect_both_reject("states", "normalize", replace({2, 2, 6, 3}, {.chunk = 8, .centroids = 10, .normalize = true}));
  expect_both_reject("states", "rope", replace({2, 2, 6, 3}, {.chunk = 8, .centroids = 10, .rope = true}));
  expect_both_reject("states", "seed", replace({2, 2, 6, 3}, {.chunk = 8, .centroids = 10, .seed = 3}));
  expect_both_reject("states", "two for a batch", [](Call& c) {
    c.states.push_back(c.states[0]);
    c.saved.initial = c.states;
  });
  expect_both_reject("states", "one for three sequences", [](Call& c) {
    c.inputs.q.batch = c.inputs.k.batch = c.inputs.v.batch = 1;
    c.cu_seqlens = {0, 5, 8, 20};
    c.inputs.cu_seqlens = c.cu_seqlens;
  });
}

TEST(BadInput, Assignments) {
  const auto force = [](const std::function<void(std::vector<int32_t>&)>& change) {
    return [change](Call& c) {
      change(c.forced);
      c.forced_given = true;
      c.assignments = c.forced;
      c.outputs.assignments = {};
      c.saved.assignments = c.assignments;
    };
  };
  const auto at_joined = [](int32_t value) {
    return [value](std::vector<int32_t>& a) {
      *std::find_if(a.begin(), a.end(), [](int32_t x) { return x >= 0; }) = value;
    };
  };
  const auto at_founder = [](int32_t value) {
    return [value](std::vector<int32_t>& a) {
      *std::find_if(a.begin(), a.end(), [](int32_t x) { return x < 0 && x != kUnassigned; }) = value;
    };
  };
  expect_both_reject("assignments", "size", force([](std::vector<int32_t>& a) { a.pop_back(); }));
  expect_both_reject("assignments", "joins what is not there", force(at_joined(1000)));
  expect_both_reject("assignments", "unassigned in a written chunk", force(at_joined(kUnassigned)));
  expect_both_reject("assignments", "founds one too many", force(at_joined(~9)));
  expect_both_reject("assignments", "founds another number", force(at_founder(~1000)));
  expect_both_reject("assignments", "founds one too few", force(at_founder(0)));
  expect_backward_rejects("assignments", "missing", [](Call& c) { c.saved.assignments = {}; });
}

TEST(BadInput, Backward) {
  expect_backward_rejects("lse", "missing", [](Call& c) { c.saved.lse = {}; });
  expect_backward_rejects("o", "missing", [](Call& c) { c.saved.o = {}; });
  expect_backward_rejects("o", "dim", [](Call& c) { c.saved.o.dim = 2; });
  expect_backward_rejects("d_o", "missing", [](Call& c) { c.output_gradients.d_o = {}; });
  expect_backward_rejects("d_o", "time", [](Call& c) { c.output_gradients.d_o.time = 3; });
  expect_backward_rejects("d_q", "missing", [](Call& c) { c.gradients.d_q = {}; });
  expect_backward_rejects("d_q", "heads", [](Call& c) { c.gradients.d_q.heads = 2; });
  expect_backward_rejects("d_k", "dim", [](Call& c) { c.gradients.d_k.dim = 3; });
  expect_backward_rejects("d_v", "time", [](Call& c) { c.gradients.d_v.time = 3; });
  expect_backward_rejects("d_beta", "size", [](Call& c) { c.gradients.d_beta = c.gradients.d_beta.first(2); });

  const Tensor wrong({2, 3, 2, 6});
  const std::vector<OvqStateGradients<const float>> d_final(2), d_final_shape{{.keys = wrong.view()}};
  const std::vector<OvqStateGradients<float>> d_initial(2), d_initial_shape{{.pending_keys = wrong.view()}};
  ASSERT_EQ(Call().states[0].pending(), 3);
  const std::vector<OvqStateGradients<float>> d_initial_values{{.pending_values = wrong.view()}};
  expect_backward_rejects("d_final", "count", [&](Call& c) { c.output_gradients.d_final = d_final; });
  expect_backward_rejects("d_final", "shape", [&](Call& c) { c.output_gradients.d_final = d_final_shape; });
  expect_backward_rejects("d_initial", "count", [&](Call& c) { c.gradients.d_initial = d_initial; });
  expect_backward_rejects("d_initial", "shape", [&](Call& c) { c.gradients.d_initial = d_initial_values; });
  expect_backward_rejects("d_initial", "without states", [&](Call& c) {
    c.saved.initial = {};
    c.assignments.assign(ovq_assignment_count(c.inputs), 0);
    c.saved.assignments = c.assignments;
    c.gradients.d_initial = d_initial_shape;
  });
}

TEST(BadInput, Attention) {
  const Tensor q({2, 20, 4, 6}), k({2, 20, 2, 6}), v({2, 20, 2, 3}), o({2, 20, 4, 3}), lse({2, 20, 4, 1});
  const Tensor d_q({2, 20, 4, 6}), d_k({2, 20, 2, 6}), d_v({2, 20, 2, 3});
  std::vector<float> beta(4, 1.0f), bad_beta{1.0f, kNan, 1.0f, 1.0f}, d_beta(4);
  const AttentionInputs right{.q = q.view(), .k = k.view(), .v = v.view(), .beta = beta};
  const auto rejects = [&](const std::string& name, const std::function<void(AttentionInputs&)>& spoil) {
    AttentionInputs inputs = right;
    spoil(inputs);
    EXPECT_TRUE(throws_naming<std::invalid_argument>(
        name, [&] { attention_forward(inputs, {.o = o.view(), .lse = lse.view()}); }));
    EXPECT_TRUE(throws_naming<std::invalid_argument>(name, [&] {
      attention_backward(inputs, {o.view(), lse.view()}, o.view(), {d_q.view(), d_k.view(), d_v.view(), d_beta});
    }));
  };
  const std::vector<int64_t> decreasing{0, 15, 10, 20}, short_of_the_end{0, 19}, good{0, 20};
  rejects("k", [](AttentionInputs& in) { in.k.heads = 3; });
  rejects("v", [](AttentionInputs& in) { in.v.heads = 4; });
  rejects("k", [](AttentionInputs& in) { in.k.dim = 7; });
  rejects("v", [](AttentionInputs& in) { in.v.time = 3; });
  rejects("q", [](AttentionInputs& in) { in.q.time = -1; });
  rejects("k", [](AttentionInputs& in) { in.k.time = in.v.time = -1; });
  rejects("beta", [&](AttentionInputs& in) { in.beta = bad_beta; });
  rejects("beta", [&](AttentionInputs& in) { in.beta = in.beta.first(2); });
  rejects("window", [](AttentionInputs& in) { in.window = -1; });
  rejects("query_offset", [](AttentionInputs& in) { in.query_offset = -1; });
  rejects("cu_seqlens", [&](AttentionInputs& in) { in.cu_seqlens = good; });
  for (const std::vector<int64_t>* offsets : {&decreasing, &short_of_the_end}) {
    rejects("cu_seqlens", [&](AttentionInputs& in) {
      in.q.batch = in.k.batch = in.v.batch = 1;
      in.cu_seqlens = *offsets;
    });
  }
  EXPECT_TRUE(throws_naming<std::invalid_argument>("o", [&] { attention_forward(right, {}); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("lse", [&] { attention_forward(right, {o.view(), o.view()}); }));
  EXPECT_TRUE(throws_naming<std::invalid_argument>("lse", [&] {
    attention_backward(right, {o.view(), {}}, o.view(), {d_q.view(), d_k.view(), d_v.view(), d_beta});
  }));
}

}  // namespace
}  // namespace ovq::kernels::test
