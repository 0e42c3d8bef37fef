// Backward of OVQ-attention problems: the fast path and the plain loops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tests/ovq_attention/choices.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {

// Gradients of one state.
struct StateTensors {
  Tensor keys, values, pending_keys, pending_values;
  Tensor counts, pending_weights;  // with weights
  Tensor shrinkage;                // with value_norms
  bool weighted = false, value_norms = false;

  StateTensors() = default;
  StateTensors(const OvqShape& shape, int64_t size, int64_t pending, Layout layout, const OvqOptions& options)
      : keys({shape.batch, size, shape.kv_heads, shape.key_dim}, layout),
        values({shape.batch, size, shape.kv_heads, shape.value_dim}, layout),
        pending_keys({shape.batch, pending, shape.kv_heads, shape.key_dim}, layout),
        pending_values({shape.batch, pending, shape.kv_heads, shape.value_dim}, layout),
        weighted(options.weighted),
        value_norms(options.value_norms) {
    if (value_norms) shrinkage = Tensor({shape.batch, size, shape.kv_heads, 1}, layout);
    if (!weighted) return;
    counts = Tensor({shape.batch, size, shape.kv_heads, 1}, layout);
    pending_weights = Tensor({shape.batch, pending, shape.kv_heads, 1}, layout);
  }

  std::vector<Tensor*> all() {
    std::vector<Tensor*> tensors = {&keys, &values, &pending_keys, &pending_values};
    if (weighted) tensors.insert(tensors.end(), {&counts, &pending_weights});
    if (value_norms) tensors.push_back(&shrinkage);
    return tensors;
  }
  void fill(Random& random) {
    for (Tensor* tensor : all()) tensor->fill(random);
  }
  template <class T>
  OvqStateGradients<T> views() const {
    OvqStateGradients<T> views = {keys.view(), values.view(), pending_keys.view(), pending_values.view()};
    if (weighted) {
      views.counts = counts.view();
      views.pending_weights = pending_weights.view();
    }
    if (value_norms) views.shrinkage = shrinkage.view();
    return views;
  }
};

// The arguments of backward besides the inputs.
struct OvqBackwardProblem {
  std::vector<OvqState> initial;      // none: no states
  Tensor d_o;                         // shaped as o
  std::vector<StateTensors> d_final;  // none: zero
};

struct OvqGradientTensors {
  Tensor d_q, d_k, d_v;
  std::vector<float> d_beta;
  std::vector<StateTensors> d_initial;
  Tensor d_weights;  // with weights
};

inline OvqGradientTensors run_backward(const OvqInputs& inputs, const OvqForward& forward,
                                       const OvqBackwardProblem& problem, Layout layout = Layout::dense) {
  const auto shape_of = [](const auto& view) { return Shape{view.batch, view.time, view.heads, view.dim}; };
  OvqGradientTensors gradients{Tensor(shape_of(inputs.q), layout),
                               Tensor(shape_of(inputs.k), layout),
                               Tensor(shape_of(inputs.v), layout),
                               std::vector<float>(inputs.q.heads, std::numeric_limits<float>::quiet_NaN()),
                               {},
                               {}};
  const bool weighted = inputs.options.weighted;
  if (weighted) gradients.d_weights = Tensor({inputs.k.batch, inputs.k.time, inputs.k.heads, 1}, layout);
  std::vector<OvqStateGradients<float>> d_initial;
  std::vector<OvqStateGradients<const float>> d_final;
  for (const OvqState& state : problem.initial) {
    gradients.d_initial.emplace_back(state.shape(), state.size(), state.pending(), layout, inputs.options);
  }
  for (const StateTensors& tensors : gradients.d_initial) d_initial.push_back(tensors.views<float>());
  for (const StateTensors& tensors : problem.d_final) d_final.push_back(tensors.views<const float>());
  ovq_attention_backward(inputs, {forward.o.view(), forward.lse.view(), forward.assignments, problem.initial},
                         {problem.d_o.view(), d_final},
                         {gradients.d_q.view(), gradients.d_k.view(), gradients.d_v.view(), gradients.d_beta, d_initial,
                          weighted ? gradients.d_weights.view() : View<float>{}});
  for (const Tensor* tensor : {&gradients.d_q, &gradients.d_k, &gradients.d_v}) EXPECT_TRUE(tensor->fences_intact());
  if (weighted) {
    EXPECT_TRUE(gradients.d_weights.fences_intact());
  }
  for (StateTensors& tensors : gradients.d_initial) {
    for (const Tensor* tensor : tensors.all()) EXPECT_TRUE(tensor->fences_intact());
  }
  return gradients;
}

template <class Scalar>
struct OvqExpectedGradients {
  std::vector<Scalar> d_q, d_k, d_v, d_beta;
  std::vector<Scalar> d_weights;  // [B, T, Hkv]; zero without weights
  std::vector<StateValues<Scalar>> d_initial;
};

template <class Scalar>
OvqExpectedGradients<Scalar> expected_backward(const OvqInputs& inputs, const OvqExpected<Scalar>& forward,
                                               const OvqBackwardProblem& problem) {
  const int64_t kv_heads = inputs.k.heads, group = inputs.q.heads / kv_heads;
  const bool packed = !inputs.cu_seqlens.empty();
  OvqExpectedGradients<Scalar> expected;
  expected.d_q.resize(inputs.q.batch * inputs.q.time * inputs.q.heads * inputs.q.dim);
  expected.d_k.resize(inputs.k.batch * inputs.k.time * kv_heads * inputs.k.dim);
  expected.d_v.resize(inputs.v.batch * inputs.v.time * kv_heads * inputs.v.dim);
  expected.d_beta.resize(inputs.q.heads);
  expected.d_weights.resize(inputs.k.batch * inputs.k.time * kv_heads);
  std::vector<reference::OvqHeadGradients<Scalar>> heads;
  for (const Sequence& sequence : sequences_of(inputs, problem.initial)) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      const size_t i = heads.size();
      std::vector<reference::Matrix<Scalar>> d_o;
      for (int64_t g = 0; g < group; ++g) {
        d_o.push_back(reference::load<Scalar>(problem.d_o.view(), sequence.batch, h * group + g, sequence.first,
                                              sequence.tokens));
      }
      reference::OvqHeadStateGradients<Scalar> d_final;
      if (!problem.d_final.empty()) {
        const StateTensors& tensors = problem.d_final[packed ? i / kv_heads : 0];
        const auto load = [&](const Tensor& tensor) {
          return reference::load<Scalar>(tensor.view(), sequence.state_batch, h, 0, tensor.view().time);
        };
        d_final = {
            load(tensors.keys), load(tensors.values), load(tensors.pending_keys), load(tensors.pending_values), {}, {}};
        if (tensors.weighted) {
          d_final.counts = load(tensors.counts).data;
          d_final.pending_weights = load(tensors.pending_weights).data;
        }
        if (tensors.value_norms) d_final.shrinkage = load(tensors.shrinkage).data;
      }
      heads.push_back(reference::ovq_attention_backward(
          reference::load_head<Scalar>(inputs, sequence.batch, h, sequence.first, sequence.tokens), forward.initial[i],
          forward.results[i], d_o, d_final));
      const reference::OvqHeadGradients<Scalar>& gradients = heads.back();
      for (int64_t t = 0; t < sequence.tokens; ++t) {
        const int64_t token = sequence.batch * inputs.q.time + sequence.first + t;
        for (int64_t g = 0; g < group; ++g) {
          std::copy_n(gradients.d_q[g][t], inputs.q.dim,
                      expected.d_q.begin() + (token * inputs.q.heads + h * group + g) * inputs.q.dim);
        }
        std::copy_n(gradients.d_k[t], inputs.k.dim, expected.d_k.begin() + (token * kv_heads + h) * inputs.k.dim);
        std::copy_n(gradients.d_v[t], inputs.v.dim, expected.d_v.begin() + (token * kv_heads + h) * inputs.v.dim);
        expected.d_weights[token * kv_heads + h] = gradients.d_weights[t];
      }
      for (int64_t g = 0; g < group; ++g) expected.d_beta[h * group + g] += gradients.d_beta[g];
    }
  }
  expected.d_initial = state_values<Scalar>(inputs, [&](int64_t i) {
    const reference::OvqHeadStateGradients<Scalar>& d = heads[i].d_initial;
    return std::pair{std::array{&d.keys, &d.values, &d.pending_keys, &d.pending_values},
                     std::array{&d.counts, &d.pending_weights, &d.shrinkage}};
  });
  return expected;
}

inline OvqBackwardProblem random_gradients(const OvqInputs& inputs, std::vector<OvqState> initial,
                                           std::span<const OvqState> final_states, Layout layout, uint64_t seed) {
  Random random(seed);
  OvqBackwardProblem problem{
      std::move(initial),
      random_tensor({inputs.q.batch, inputs.q.time, inputs.q.heads, inputs.v.dim}, layout, random),
      {}};
  for (const OvqState& state : final_states) {
    problem.d_final.emplace_back(state.shape(), state.size(), state.pending(), layout, inputs.options);
    problem.d_final.back().fill(random);
  }
  return problem;
}

inline double largest(const View<const float>& x) {
  double most = 0;
  for (int64_t b = 0; b < x.batch; ++b) {
    for (int64_t t = 0; t < x.time; ++t) {
      for (int64_t h = 0; h < x.heads; ++h) {
        for (int64_t d = 0; d < x.dim; ++d) most = std::max(most, std::abs(static_cast<double>(x.row(b, t, h)[d])));
      }
    }
  }
  return most;
}

inline void expect_gradients_match(const OvqInputs& inputs, std::span<const OvqState> initial,
                                   const OvqGradientTensors& actual, const OvqExpectedGradients<float>& plain,
                                   const OvqExpectedGradients<double>& truth) {
  double beta = 0;
  for (float b : inputs.beta) beta = std::max(beta, std::abs(static_cast<double>(b)));
  const double product = 4 * std::sqrt(static_cast<double>(inputs.v.dim));  // do . v
  const double terms = std::sqrt(static_cast<double>(inputs.q.batch * inputs.q.time));
  const double key = std::max(1.0, largest(inputs.k));  // the terms of d_q are beta (do . v) k; queries are unit rows
  EXPECT_TRUE(calibrated(
      {.actual = actual.d_q.values(), .plain = plain.d_q, .truth = truth.d_q, .magnitude = beta * product * key}))
      << "d_q";
  EXPECT_TRUE(
      calibrated({.actual = actual.d_k.values(), .plain = plain.d_k, .truth = truth.d_k, .magnitude = beta * product}))
      << "d_k";
  EXPECT_TRUE(calibrated({.actual = actual.d_v.values(), .plain = plain.d_v, .truth = truth.d_v, .magnitude = 1}))
      << "d_v";
  EXPECT_TRUE(
      calibrated({.actual = actual.d_beta, .plain = plain.d_beta, .truth = truth.d_beta, .magnitude = terms * product}))
      << "d_beta";
  // The gradient by the logarithm of a weight or count is as large as that of any logit, and dividing it adds only one
  // rounding. The gradient by the weight itself would be dominated by small weights.
  const auto expect_weights = [&](const char* name, const std::vector<float>& a, std::vector<float> p,
                                  std::vector<double> t, const std::vector<float>& weights) {
    std::vector<float> scaled = a;
    for (size_t i = 0; i < weights.size() && weights.size() == t.size() && a.size() == t.size(); ++i) {
      scaled[i] *= weights[i];
      p[i] *= weights[i];
      t[i] *= weights[i];
    }
    EXPECT_TRUE(calibrated({.actual = scaled, .plain = p, .truth = t, .magnitude = product})) << name;
  };
  const bool weighted = inputs.options.weighted;
  if (weighted) {
    expect_weights("d_weights", actual.d_weights.values(), plain.d_weights, truth.d_weights, dense(inputs.weights));
  }
  for (size_t s = 0; s < actual.d_initial.size(); ++s) {
    SCOPED_TRACE(testing::Message() << "state " << s);
    const StateTensors& a = actual.d_initial[s];
    const StateValues<float>& p = plain.d_initial[s];
    const StateValues<double>& t = truth.d_initial[s];
    EXPECT_TRUE(calibrated({.actual = a.keys.values(), .plain = p.keys, .truth = t.keys, .magnitude = beta * product}));
    EXPECT_TRUE(calibrated({.actual = a.values.values(), .plain = p.values, .truth = t.values, .magnitude = 1}));
    EXPECT_TRUE(calibrated({.actual = a.pending_keys.values(),
                            .plain = p.pending_keys,
                            .truth = t.pending_keys,
                            .magnitude = beta * product}));
    EXPECT_TRUE(calibrated(
        {.actual = a.pending_values.values(), .plain = p.pending_values, .truth = t.pending_values, .magnitude = 1}));
    if (inputs.options.value_norms) {
      EXPECT_TRUE(
          calibrated({.actual = a.shrinkage.values(), .plain = p.shrinkage, .truth = t.shrinkage, .magnitude = 4}))
          << "shrinkage";
    }
    if (!weighted) continue;
    const StateValues<float> values = values_of(initial[s]);
    expect_weights("counts", a.counts.values(), p.counts, t.counts, values.counts);
    expect_weights("pending weights", a.pending_weights.values(), p.pending_weights, t.pending_weights,
                   values.pending_weights);
  }
}

}  // namespace ovq::kernels::test
