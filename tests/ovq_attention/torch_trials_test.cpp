// Variations of the dictionary on the composed path: properties that all of them must keep.
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "ovq/ops/attention/torch.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "tests/ops/fixtures.h"

namespace ovq::ops::test {
namespace {

using kernels::OvqOptions;
using kernels::Trial;

constexpr Shape kTrialShape{.batch = 2, .time = 45, .query_heads = 4, .kv_heads = 2, .key_dim = 6, .value_dim = 5};

struct TrialRun {
  std::vector<Tensor> inputs;
  OvqResult result;

  const PlainState& state() const { return result.states.front()->plain(); }
};

TrialRun run_trial(const OvqOptions& options, const Shape& shape = kTrialShape) {
  TrialRun r;
  for (const Tensor& x : make_inputs(shape, 3)) r.inputs.push_back(x.to(at::kDouble));
  r.result = ovq_attention_with_state(r.inputs[0], r.inputs[1], r.inputs[2], r.inputs[3], options, {}, {});
  return r;
}

std::vector<OvqOptions> trials() {
  return {{.chunk = 8, .centroids = 12, .trial = Trial::two_nearest},
          {.chunk = 8, .centroids = 12, .trial = Trial::log_size}};
}

// However tokens are divided, their mass is preserved: sum c D = sum x over the tokens written.
TEST(OvqTrials, CentroidsHoldEveryTokenOnce) {
  for (const OvqOptions& options : trials()) {
    SCOPED_TRACE(name_of(options.trial));
    const TrialRun r = run_trial(options);
    const int64_t written = kTrialShape.time / options.chunk * options.chunk;
    const Tensor counts = r.state().counts.to(at::kDouble).unsqueeze(-1);
    EXPECT_TRUE(at::allclose(counts.sum(2), at::full_like(counts.sum(2), written)));
    const auto total = [&](const Tensor& x) { return x.slice(1, 0, written).sum(1); };  // [B, Hkv, D]
    EXPECT_TRUE(at::allclose((counts * r.state().keys).sum(2), total(r.inputs[1])));
    EXPECT_TRUE(at::allclose((counts * r.state().values).sum(2), total(r.inputs[2])));
  }
}

TEST(OvqTrials, TwoNearestSharesTokensOut) {
  const TrialRun r = run_trial(trials()[0]);
  const Tensor counts = r.state().counts;
  EXPECT_FALSE(at::allclose(counts, counts.round())) << "some token is between two centroids";
}

TEST(OvqTrials, NormalizeReachesBothCentroids) {
  OvqOptions options = trials()[0];
  options.normalize = true;
  const Tensor norms = run_trial(options).state().keys.norm(2, {-1});
  EXPECT_TRUE(at::allclose(norms, at::ones_like(norms))) << norms;
}

// Two keys that merge, by hand: the values are (3, 0) and (0, 4); their mean is read with their average norm.
TEST(OvqValueNorms, OfTwoTokens) {
  const Tensor key = at::tensor({1.0, 0.0}, at::kDouble).reshape({1, 1, 1, 2}).repeat({1, 3, 1, 1});
  const Tensor value = at::tensor({3.0, 0.0, 0.0, 4.0, 9.0, 9.0}, at::kDouble).reshape({1, 3, 1, 2});
  const Tensor beta = at::ones({1}, at::kDouble);
  const OvqOptions options{.chunk = 2, .centroids = 1, .value_norms = true};
  const Tensor o = ovq_attention(key, key, value, beta, options);
  // The third token sees itself once and the pair, which counts twice: (1.5, 2) has norm 2.5 and is rescaled to 3.5.
  const Tensor expected = (2 * at::tensor({1.5, 2.0}, at::kDouble) * (3.5 / 2.5) + value[0][2][0]) / 3;
  EXPECT_TRUE(at::allclose(o[0][2][0], expected)) << o[0][2][0];
}

TEST(OvqTrials, PiecesAreOnePass) {
  for (const OvqOptions& options : trials()) {
    SCOPED_TRACE(name_of(options.trial));
    const TrialRun whole = run_trial(options);
    const auto& x = whole.inputs;
    std::vector<StatePtr> states;
    std::vector<Tensor> outputs;
    for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 3}, {3, 20}, {20, 44}, {44, 45}}) {
      OvqResult part = ovq_attention_with_state(x[0].slice(1, first, last), x[1].slice(1, first, last),
                                                x[2].slice(1, first, last), x[3], options, {}, states);
      outputs.push_back(part.o);
      states = part.states;
    }
    EXPECT_TRUE(at::allclose(at::cat(outputs, 1), whole.result.o));
    EXPECT_TRUE(at::allclose(states.front()->plain().values, whole.state().values));
  }
}

TEST(OvqTrials, WithACentroidForEveryTokenItIsAttention) {
  for (OvqOptions options : trials()) {
    SCOPED_TRACE(name_of(options.trial));
    if (options.trial == Trial::log_size) continue;  // has another sharpness
    options.centroids = 2 * kTrialShape.time * kTrialShape.time;
    const TrialRun r = run_trial(options);
    EXPECT_TRUE(at::allclose(r.result.o, attention(r.inputs[0], r.inputs[1], r.inputs[2], r.inputs[3])));
  }
}

// In the first chunk there are no centroids, in the second 8, if every token has one.
TEST(OvqTrials, LogSizeSharpensWithTheDictionary) {
  const OvqOptions options{.chunk = 8, .centroids = 2 * kTrialShape.time * kTrialShape.time, .trial = Trial::log_size};
  const TrialRun r = run_trial(options);
  const auto& x = r.inputs;
  for (const int64_t chunk : {0, 1}) {
    const double factor = std::log(1.0 + 8.0 * static_cast<double>(chunk + 1)) / std::log(129.0);
    const Tensor expected = attention(x[0], x[1], x[2], x[3] * factor);
    const auto rows = [&](const Tensor& o) { return o.slice(1, 8 * chunk, 8 * chunk + 8); };
    EXPECT_TRUE(at::allclose(rows(r.result.o), rows(expected))) << chunk;
  }
}

// Central differences along a random direction; no assignment changes that close.
TEST(OvqTrials, Gradients) {
  for (const OvqOptions& options : trials()) {
    SCOPED_TRACE(name_of(options.trial));
    std::vector<Tensor> x;
    for (const Tensor& input : make_inputs(kTrialShape, 3)) x.push_back(input.to(at::kDouble).requires_grad_());
    if (options.trial == Trial::two_nearest) x[1] = x[1].detach();  // shares follow the keys, and carry no gradient
    const Tensor d_o = normal({kTrialShape.batch, kTrialShape.time, kTrialShape.query_heads, kTrialShape.value_dim}, 5)
                           .to(at::kDouble);
    const auto loss = [&](double step, int64_t which, const Tensor& direction) {
      std::vector<Tensor> moved = x;
      moved[which] = moved[which].detach() + step * direction;
      return (ovq_attention(moved[0], moved[1], moved[2], moved[3], options) * d_o).sum();
    };
    for (int64_t which = 0; which < 4; ++which) {
      if (!x[which].requires_grad()) continue;
      const Tensor direction = normal(x[which].sizes(), 9).to(at::kDouble);
      const Tensor gradient =
          torch::autograd::grad({(ovq_attention(x[0], x[1], x[2], x[3], options) * d_o).sum()}, {x[which]})[0];
      const double slope = (gradient * direction).sum().item<double>();
      const double measured = (loss(1e-6, which, direction) - loss(-1e-6, which, direction)).item<double>() / 2e-6;
      EXPECT_NEAR(slope, measured, 1e-5 * std::max(1.0, std::abs(slope))) << "input " << which;
    }
  }
}

TEST(OvqTrials, KernelsHaveNone) {
  const std::vector<Tensor> x = make_inputs(kTrialShape, 3);
  for (const OvqOptions& options : trials()) {
    EXPECT_THROW(ovq_attention(x[0], x[1], x[2], x[3], options, {}, {}, Backend::fused), std::invalid_argument);
    EXPECT_NO_THROW(ovq_attention(x[0], x[1], x[2], x[3], options));
  }
  OvqOptions constant = trials()[0];
  constant.rate = 0.1f;
  EXPECT_THROW(ovq_attention(x[0], x[1], x[2], x[3], constant), std::invalid_argument);
}

}  // namespace
}  // namespace ovq::ops::test
