// What holds for every mixer, as functions of one that makes it.
#pragma once

#include <algorithm>
#include <memory>

#include "ovq/nn/attention_heads.h"
#include "ovq/nn/mixer.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::nn::test {

using namespace ops::test;

inline constexpr HeadOptions kHeads = {.width = 6, .heads = 2, .head_dim = 4};
inline constexpr HeadOptions kGrouped = {.width = 6, .heads = 4, .kv_heads = 2, .head_dim = 4};

using MakeMixer = std::function<std::shared_ptr<Mixer>()>;

struct MixerCase {
  MakeMixer make;
  int64_t width = 8;
  int64_t gradient_time = 6;  // tokens of the gradient check
  double tolerance = 1e-5;    // relative to the largest element
  double gradient_tolerance = kFloatGradients, gradient_step = kFloatStep;
  bool exact_causality = true;  // the future leaves past outputs as they are, bit for bit
  std::vector<int64_t> times = {0, 1, 2, 63, 64, 65, 130};
};

inline std::shared_ptr<Mixer> make_mixer(const MixerCase& x) {
  torch::manual_seed(11);
  std::shared_ptr<Mixer> mixer = x.make();
  // Weights N(0, 0.02) would leave most of a small mixer untested.
  const torch::NoGradGuard no_grad;
  for (auto& item : mixer->named_parameters()) {
    if (item.value().dim() == 2) item.value().mul_(20);
  }
  return mixer;
}

inline Tensor make_input(const MixerCase& x, int64_t batch, int64_t time) { return at::randn({batch, time, x.width}); }

inline Tensor all_steps(Mixer& mixer, const Tensor& x, MixerState& state) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) outputs.push_back(mixer.step(x.narrow(1, t, 1), state));
  return outputs.empty() ? at::zeros_like(x) : at::cat(outputs, 1);
}

inline void expect_same_state(const MixerState& actual, const MixerState& expected, double tolerance) {
  EXPECT_EQ(actual.position, expected.position);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    ASSERT_TRUE(actual.tensors.contains(name)) << name;
    EXPECT_TRUE(close(actual.tensors.at(name), tensor, tolerance)) << name;
  }
  ASSERT_EQ(actual.ovq != nullptr, expected.ovq != nullptr);
  if (!expected.ovq) return;
  const ops::StateTensors a = actual.ovq->tensors(), e = expected.ovq->tensors();
  EXPECT_TRUE(close(a.keys, e.keys, tolerance));
  EXPECT_TRUE(close(a.values, e.values, tolerance));
  EXPECT_TRUE(close(a.pending_keys, e.pending_keys, tolerance));
  EXPECT_TRUE(close(a.pending_values, e.pending_values, tolerance));
  const bool weighted = expected.ovq->options().weighted;
  EXPECT_TRUE(close(actual.ovq->counts(), expected.ovq->counts(), weighted ? tolerance : 0));
  if (expected.ovq->options().value_norms) {
    EXPECT_TRUE(close(a.shrinkage, e.shrinkage, tolerance));
  }
  if (weighted) {
    EXPECT_TRUE(close(actual.ovq->pending_weights(), expected.ovq->pending_weights(), tolerance));
  }
}

// One pass = one pass with a state = token by token.
inline void expect_steps_equal_forward(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  for (const int64_t time : x.times) {
    const Tensor input = make_input(x, 2, time), whole = mixer->forward(input);
    ASSERT_EQ(whole.sizes(), input.sizes()) << "time " << time;
    MixerState carried, stepped;
    EXPECT_TRUE(close(mixer->forward(input, carried), whole, x.tolerance)) << "time " << time;
    EXPECT_TRUE(close(all_steps(*mixer, input, stepped), whole, x.tolerance)) << "time " << time;
    EXPECT_EQ(carried.position, time);
    if (time > 0) expect_same_state(stepped, carried, x.tolerance);
  }
}

// Pieces that carry the state = one pass, whether by forward or by step, and `step` takes more than a token, or none.
inline void expect_pieces_equal_whole(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  const Tensor input = make_input(x, 2, 130), whole = mixer->forward(input);
  for (const bool by_step : {false, true}) {
    MixerState state;
    std::vector<Tensor> outputs;
    int64_t begin = 0;
    for (const int64_t end : {0, 1, 3, 3, 60, 128, 130}) {
      const Tensor piece = input.slice(1, begin, end);
      outputs.push_back(by_step ? mixer->step(piece, state) : mixer->forward(piece, state));
      begin = end;
    }
    EXPECT_TRUE(close(at::cat(outputs, 1), whole, x.tolerance)) << (by_step ? "step" : "forward");
  }
}

// Gradients by the input, every parameter and, through the state, the piece before.
inline void expect_mixer_gradients(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  Tensor input = make_input(x, 2, x.gradient_time);
  std::vector<Named> named{{"x", input}};
  for (auto& item : mixer->named_parameters()) named.push_back({item.key(), item.value()});
  expect_gradients(
      named,
      [&] {
        const torch::AutoGradMode gradients(true);  // the differences too take the path of training
        MixerState state;
        const int64_t half = x.gradient_time / 2;
        const Tensor first = mixer->forward(input.slice(1, 0, half), state);
        const Tensor second = mixer->forward(input.slice(1, half), state);
        return std::vector{first, second, mixer->forward(input)};
      },
      x.gradient_tolerance, x.gradient_step);
}

// Changes after a token leave the outputs up to it as they are.
inline void expect_causal(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  const Tensor input = make_input(x, 2, 130), whole = mixer->forward(input);
  for (const int64_t time : {1, 63, 64, 65, 100}) {
    const Tensor changed = input.clone();
    changed.slice(1, time).normal_();
    EXPECT_TRUE(
        close(mixer->forward(changed).slice(1, 0, time), whole.slice(1, 0, time), x.exact_causality ? 0 : x.tolerance))
        << "time " << time;
  }
}

// A sequence does not depend on its neighbours in the batch.
inline void expect_batch_invariant(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  const Tensor input = make_input(x, 3, 70), whole = mixer->forward(input);
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_TRUE(close(mixer->forward(input.narrow(0, b, 1)), whole.narrow(0, b, 1), x.tolerance));
  }
}

// Packed sequences = each alone, gradients too.
inline void expect_packed_equal_alone(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  const std::vector<int64_t> offsets{0, 1, 1, 3, 68, 70, 135};
  const Tensor input = make_input(x, 1, offsets.back()).requires_grad_(true);
  const Tensor packed = mixer->forward(input, at::tensor(offsets));
  std::vector<Tensor> parts;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    parts.push_back(mixer->forward(input.slice(1, offsets[i], offsets[i + 1])));
  }
  const Tensor alone = at::cat(parts, 1);
  EXPECT_TRUE(close(packed, alone, x.tolerance));
  std::vector<Tensor> leaves = mixer->parameters();
  leaves.push_back(input);
  const auto gradients = [&](const Tensor& y) {
    return torch::autograd::grad({weighted_sum({y})}, leaves, {}, false, false, true);
  };
  const auto actual = gradients(packed), expected = gradients(alone);
  for (size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined());
    if (expected[i].defined()) {
      EXPECT_TRUE(close(actual[i], expected[i], x.tolerance));
    }
  }
}

// state_bytes is what the state takes.
inline void expect_state_bytes(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  const torch::NoGradGuard no_grad;
  for (const int64_t time : x.times) {
    if (time == 0) continue;
    MixerState state;
    mixer->forward(make_input(x, 1, time), state);
    EXPECT_EQ(state.nbytes(), mixer->state_bytes(time)) << "time " << time;
    MixerState three;
    mixer->forward(make_input(x, 3, time), three);
    EXPECT_EQ(three.nbytes(), 3 * mixer->state_bytes(time)) << "time " << time;
  }
  MixerState stepped;
  all_steps(*mixer, make_input(x, 1, 300), stepped);
  EXPECT_LE(stepped.nbytes(), mixer->state_bytes(300) * 5 / 4);
}

// A clone goes its own way: decoding in place leaves it as it was. After pieces, so that there is room to write into.
inline void expect_clones_independent(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  for (const bool gradients : {true, false}) {
    const torch::AutoGradMode mode(gradients);
    MixerState state;
    mixer->forward(make_input(x, 2, 20), state);
    mixer->forward(make_input(x, 2, 1), state);
    MixerState clone = state.clone();
    const MixerState untouched = clone.clone();
    const Tensor next = make_input(x, 2, 70);
    const Tensor first = all_steps(*mixer, next, state);
    expect_same_state(clone, untouched, 0);
    EXPECT_TRUE(close(all_steps(*mixer, next, clone), first, 0));
    expect_same_state(clone, state, 0);
  }
}

// Whatever projection of a step throws: the state is as it was, and if it was the one behind the op, as after the step.
inline void expect_errors_leave_a_whole_state(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  const torch::NoGradGuard no_grad;
  MixerState before;
  all_steps(*mixer, make_input(x, 2, 20), before);
  const Tensor token = make_input(x, 2, 1);
  MixerState after = before.clone();
  mixer->step(token, after);
  int thrown = 0;
  for (auto& item : mixer->named_parameters()) {
    if (!item.key().ends_with("proj.weight")) continue;
    SCOPED_TRACE(item.key());
    const Tensor weight = item.value().detach();
    item.value().set_data(weight.to(at::kDouble));  // there are no kernels for it
    MixerState state = before.clone(), fresh;
    EXPECT_THROW(mixer->step(token, state), std::exception);
    EXPECT_THROW(mixer->step(token, fresh), std::exception);
    item.value().set_data(weight);
    ++thrown;
    const bool behind = item.key() == "o_proj.weight" || item.key() == "out_proj.weight";
    expect_same_state(state, behind ? after : before, 0);
    EXPECT_EQ(fresh.position, behind ? 1 : 0);
    if (behind) continue;
    EXPECT_EQ(fresh.nbytes(), 0);
    EXPECT_TRUE(fresh.tensors.empty());
  }
  EXPECT_GE(thrown, 2);
}

inline void expect_bad_input_throws(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  EXPECT_THROW(mixer->forward(at::zeros({4, x.width})), std::invalid_argument);
  EXPECT_THROW(mixer->forward(at::zeros({1, 4, x.width + 1})), std::invalid_argument);
  EXPECT_THROW(mixer->forward(at::zeros({1, 4, x.width}), at::tensor({0, 3})), std::invalid_argument);
  EXPECT_THROW(mixer->forward(at::zeros({2, 4, x.width}), at::tensor({0, 4})), std::invalid_argument);
}

// float64 is for the formulas in Python.
inline void expect_refuses_float64(const MixerCase& x) {
  const auto mixer = make_mixer(x);
  mixer->to(at::kDouble);
  const Tensor input = make_input(x, 1, 4).to(at::kDouble);
  MixerState state;
  for (const std::string& message :
       {message_of([&] { mixer->forward(input); }), message_of([&] { mixer->step(input, state); })}) {
    EXPECT_NE(message.find("the kernels take float32, bfloat16 and half on the CPU"), std::string::npos) << message;
  }
}

}  // namespace ovq::nn::test
