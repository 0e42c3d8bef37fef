// OVQ-attention problems for the ops, and two ways to compute them: the op, and the plain loops of reference.h with the
// op's assignments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/tensor_view.h"
#include "tests/ops/fixtures.h"
#include "tests/ovq_attention/backward_fixtures.h"

namespace ovq::ops::test {

struct OvqCase {
  Shape shape;
  kernels::OvqOptions options{.chunk = 8, .centroids = 12};
  std::vector<int64_t> cu_seqlens;  // empty: not packed
  int64_t prefix = 0;               // tokens read before the incoming states of each sequence; 0: no states
  int64_t pieces = 1;               // number of calls among which the tokens are divided at random
  uint64_t seed = 1;
};

inline std::ostream& operator<<(std::ostream& out, const OvqCase& c) {
  const auto& [batch, time, query_heads, kv_heads, key_dim, value_dim] = c.shape;
  out << "batch " << batch << ", time " << time << ", heads " << query_heads << "/" << kv_heads << ", dims " << key_dim
      << "/" << value_dim << ", chunk " << c.options.chunk << ", centroids " << c.options.centroids << ", growth "
      << name_of(c.options.growth) << ", new centroids " << name_of(c.options.new_centroids) << ", rate "
      << c.options.rate.value_or(0) << ", normalize " << c.options.normalize << ", rope " << c.options.rope
      << ", weighted " << c.options.weighted << ", prefix " << c.prefix << ", pieces " << c.pieces << ", seed "
      << c.seed;
  for (int64_t offset : c.cu_seqlens) out << ", " << offset;
  return out;
}

// A batch counts as one sequence here because it has one state.
struct OvqProblem {
  explicit OvqProblem(const OvqCase& c) : c(c), inputs(make_inputs(c.shape, c.seed)) {
    if (weighted()) inputs.push_back(make_weights(c.shape, c.seed));
    bounds = c.cu_seqlens.empty() ? std::vector<int64_t>{0, c.shape.time} : c.cu_seqlens;
    kernels::test::Random random(c.seed);
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      std::vector<int64_t> cut = {bounds[s], bounds[s + 1]};
      for (int64_t i = 1; i < c.pieces; ++i) cut.push_back(bounds[s] + random.below(bounds[s + 1] - bounds[s] + 1));
      std::sort(cut.begin(), cut.end());
      cuts.push_back(cut);
    }
    if (c.prefix > 0) initial = states_after_prefix();
    run_kernel();
    d_o = normal({c.shape.batch, c.shape.time, c.shape.query_heads, c.shape.value_dim}, c.seed + 7);
    for (const kernels::OvqState& state : final_states) {
      for (const Tensor& x : views_of(std::make_shared<kernels::OvqState>(state)).list()) {
        d_final.push_back(normal(x.sizes(), c.seed + 8 + d_final.size()));
      }
    }
  }

  bool packed() const { return !c.cu_seqlens.empty(); }
  bool weighted() const { return c.options.weighted; }
  size_t sequences() const { return cuts.size(); }
  c10::optional<Tensor> offsets(const std::vector<int64_t>& lengths) const {
    if (!packed()) return {};
    std::vector<int64_t> sums = {0};
    for (int64_t length : lengths) sums.push_back(sums.back() + length);
    return at::tensor(sums, at::kLong);
  }
  kernels::OvqInputs kernel_inputs() const {
    return {.q = view_of(inputs[0]),
            .k = view_of(inputs[1]),
            .v = view_of(inputs[2]),
            .beta = span_of(inputs[3]),
            .weights = weighted() ? view_of(inputs[4].unsqueeze(-1)) : kernels::View<float>{},
            .options = c.options,
            .cu_seqlens = c.cu_seqlens};
  }
  std::vector<kernels::OvqState> initial_states() const {
    std::vector<kernels::OvqState> states;
    for (const StatePtr& state : initial) states.push_back(*state->kernel());
    return states;
  }

  OvqCase c;
  std::vector<Tensor> inputs;  // q, k, v, beta, and weights if there are any
  std::vector<int64_t> bounds;
  std::vector<std::vector<int64_t>> cuts;  // [sequence][piece + 1]
  std::vector<StatePtr> initial;
  Tensor kernel_o;
  std::vector<int32_t> assignments;             // of all sequences, as the kernel returns them
  std::vector<kernels::OvqState> final_states;  // [sequence]
  Tensor d_o;
  std::vector<Tensor> d_final;  // [sequence][4] of [B, Hkv, n, D]; with weights [sequence][6]

 private:
  std::vector<StatePtr> states_after_prefix() const {
    Shape shape = c.shape;
    const auto count = static_cast<int64_t>(sequences());
    shape.time = c.prefix * count;
    const std::vector<Tensor> x = make_inputs(shape, c.seed + 1000);
    c10::optional<Tensor> weights;
    if (weighted()) weights = make_weights(shape, c.seed + 1000);
    return ovq_attention_with_state(x[0], x[1], x[2], x[3], c.options, offsets(std::vector(count, c.prefix)), {},
                                    weights)
        .states;
  }

  void run_kernel() {
    const kernels::OvqInputs in = kernel_inputs();
    final_states = initial_states();
    if (initial.empty()) {
      const int64_t batch = packed() ? 1 : c.shape.batch;
      final_states.assign(sequences(),
                          kernels::OvqState({batch, c.shape.kv_heads, c.shape.key_dim, c.shape.value_dim}, c.options));
    }
    assignments.resize(kernels::ovq_assignment_count(in, final_states));
    kernel_o = at::empty({c.shape.batch, c.shape.time, c.shape.query_heads, c.shape.value_dim});
    kernels::ovq_attention_forward(in, {.o = view_of(kernel_o), .lse = {}, .assignments = assignments}, final_states);
  }
};

// States are compared as the kernels lay them out: [B, n, Hkv, D].
inline Results named(const OvqProblem& problem, const Tensor& o, const std::vector<Tensor>& final_tensors,
                     const std::vector<Tensor>& gradients) {
  std::vector<std::string> parts = {"keys", "values", "pending_keys", "pending_values"};
  if (problem.weighted()) parts.insert(parts.end(), {"counts", "pending_weights"});
  if (problem.c.options.value_norms) parts.emplace_back("shrinkage");
  const size_t per_state = StateTensors::count(problem.c.options), inputs = problem.inputs.size();
  Results results = {
      {"o", o}, {"d_q", gradients[0]}, {"d_k", gradients[1]}, {"d_v", gradients[2]}, {"d_beta", gradients[3]}};
  const auto add = [&](const std::string& prefix, const std::vector<Tensor>& tensors, size_t first) {
    for (size_t i = first; i < tensors.size(); ++i) {
      const std::string number = std::to_string((i - first) / per_state);
      results[prefix + parts[(i - first) % per_state] + " " + number] = tensors[i].transpose(1, 2).contiguous();
    }
  };
  if (problem.weighted()) results["d_weights"] = gradients[4];
  add("final_", final_tensors, 0);
  add("d_initial_", gradients, inputs);
  EXPECT_EQ(final_tensors.size(), per_state * problem.sequences());
  EXPECT_EQ(gradients.size(), inputs + per_state * problem.initial.size());
  return results;
}

// The op, piece by piece.
inline Results through_op(const OvqProblem& problem) {
  std::vector<Tensor> x = leaves(problem.inputs, at::kFloat);
  std::vector<StatePtr> states;
  for (const StatePtr& state : problem.initial) {
    std::vector<Tensor> tracked = views_of(state->kernel()).list();
    for (Tensor& leaf : tracked) x.push_back(leaf.requires_grad_());
    states.push_back(c10::make_intrusive<State>(state->kernel(), StateTensors::from(tracked, problem.c.options)));
  }
  std::vector<std::vector<Tensor>> outputs(problem.sequences());
  for (int64_t piece = 0; piece < problem.c.pieces; ++piece) {
    const auto part = [&](const Tensor& all) {
      std::vector<Tensor> parts;
      for (const auto& cut : problem.cuts) parts.push_back(all.slice(1, cut[piece], cut[piece + 1]));
      return at::cat(parts, 1);
    };
    std::vector<int64_t> lengths;
    for (const auto& cut : problem.cuts) lengths.push_back(cut[piece + 1] - cut[piece]);
    c10::optional<Tensor> piece_weights;
    if (problem.weighted()) piece_weights = part(x[4]);
    const OvqResult result = ovq_attention_with_state(part(x[0]), part(x[1]), part(x[2]), x[3], problem.c.options,
                                                      problem.offsets(lengths), states, piece_weights);
    states = result.states;
    const std::vector<Tensor> parts = result.o.split_with_sizes(lengths, 1);
    for (size_t s = 0; s < parts.size(); ++s) outputs[s].push_back(parts[s]);
  }
  std::vector<Tensor> whole, final_tensors, weighted, weights = {problem.d_o};
  for (const auto& parts : outputs) whole.push_back(at::cat(parts, 1));
  const Tensor o = at::cat(whole, 1);
  for (const StatePtr& state : states) {
    for (const Tensor& tensor : state->tensors().list()) final_tensors.push_back(tensor);
  }
  weighted = {o};
  weighted.insert(weighted.end(), final_tensors.begin(), final_tensors.end());
  weights.insert(weights.end(), problem.d_final.begin(), problem.d_final.end());
  return named(problem, o, final_tensors, gradients_of(weighted, weights, x));
}

// The plain loops, in one pass.
template <class Scalar>
Results by_plain_loops(const OvqProblem& problem) {
  namespace kt = kernels::test;
  const kernels::OvqInputs in = problem.kernel_inputs();
  const auto filled = [](const Tensor& x) {  // [B, T, H, D]
    kt::Tensor copy({x.size(0), x.size(1), x.size(2), x.size(3)});
    const std::vector<float> values = values_of<float>(x);
    std::copy(values.begin(), values.end(), copy.view().data);
    return copy;
  };
  kt::OvqBackwardProblem backward{problem.initial_states(), filled(problem.d_o), {}};
  const size_t per_state = StateTensors::count(problem.c.options);
  for (size_t i = 0; i < problem.d_final.size(); i += per_state) {
    kt::StateTensors d;
    d.weighted = problem.weighted();
    d.value_norms = problem.c.options.value_norms;
    const std::vector<kt::Tensor*> to = d.all();
    for (size_t j = 0; j < per_state; ++j) {
      const Tensor from = problem.d_final[i + j].transpose(1, 2);
      *to[j] = filled(j < 4 ? from : from.unsqueeze(-1));
    }
    backward.d_final.push_back(d);
  }
  const auto forward = kt::expected_forward<Scalar>(in, backward.initial, problem.assignments);
  const auto gradients = kt::expected_backward(in, forward, backward);
  const std::vector<Tensor>& x = problem.inputs;
  Results results = {{"o", tensor_of(forward.o, problem.d_o.sizes())},
                     {"d_q", tensor_of(gradients.d_q, x[0].sizes())},
                     {"d_k", tensor_of(gradients.d_k, x[1].sizes())},
                     {"d_v", tensor_of(gradients.d_v, x[2].sizes())},
                     {"d_beta", tensor_of(gradients.d_beta, x[3].sizes())}};
  if (problem.weighted()) results["d_weights"] = tensor_of(gradients.d_weights, x[4].sizes());
  const auto add = [&](const std::string& prefix, const std::vector<kt::StateValues<Scalar>>& states) {
    const int64_t batch = problem.packed() ? 1 : problem.c.shape.batch, heads = problem.c.shape.kv_heads;
    const int64_t key_dim = problem.c.shape.key_dim, value_dim = problem.c.shape.value_dim;
    for (size_t s = 0; s < states.size(); ++s) {
      const auto put = [&](const char* part, const std::vector<Scalar>& values, int64_t dim) {
        const int64_t rows = static_cast<int64_t>(values.size()) / (batch * heads * dim);
        results[prefix + part + " " + std::to_string(s)] = tensor_of(values, {batch, rows, heads, dim});
      };
      put("keys", states[s].keys, key_dim);
      put("values", states[s].values, value_dim);
      put("pending_keys", states[s].pending_keys, key_dim);
      put("pending_values", states[s].pending_values, value_dim);
      const auto put_weights = [&](const char* part, const std::vector<Scalar>& values) {
        const int64_t rows = static_cast<int64_t>(values.size()) / (batch * heads);
        results[prefix + part + " " + std::to_string(s)] = tensor_of(values, {batch, rows, heads});
      };
      if (problem.c.options.value_norms) put_weights("shrinkage", states[s].shrinkage);
      if (!problem.weighted()) continue;
      put_weights("counts", states[s].counts);
      put_weights("pending_weights", states[s].pending_weights);
    }
  };
  add("final_", kt::final_values(in, forward));
  if (!problem.initial.empty()) add("d_initial_", gradients.d_initial);
  return results;
}

}  // namespace ovq::ops::test
