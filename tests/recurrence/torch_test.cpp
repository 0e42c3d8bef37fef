// Every linear recurrence: the chunked form, composed and by kernels, against the token loop, and its gradients against
// central differences.
#include "ovq/ops/gated_delta_rule/torch.h"
#include "ovq/ops/linear_attention/torch.h"
#include "ovq/ops/mesa/torch.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/ssd/torch.h"
#include "ovq/ops/torch/backend.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

using Tensors = std::vector<Tensor>;

struct Sizes {
  int64_t batch = 2, time = 130, heads = 2, key_dim = 8, value_dim = 5;
};

// A recurrence as a function of a list of tensors: those along time first, the state last.
struct Recurrence {
  std::string name;
  std::vector<std::string> arguments;
  int64_t along_time;
  std::function<Tensors(const Sizes&)> inputs;  // double
  std::function<RecurrenceResult(const Tensors&, int64_t chunk)> by_chunks, by_tokens;
};

Tensor gaussian(at::IntArrayRef shape) { return at::randn(shape, kDouble); }
Tensor unit(at::IntArrayRef shape) { return l2_norm(gaussian(shape)); }

// Decays from none to nearly total, so that weak ones follow strong ones in the same chunk.
Tensor decays(const Sizes& s) {
  return -(2 * gaussian({s.batch, s.time, s.heads}) - 1).exp() -
         50 * at::rand({s.batch, s.time, s.heads}, kDouble).gt(0.98);
}

std::vector<Recurrence> recurrences() {
  const auto q = [](const Sizes& s) { return unit({s.batch, s.time, s.heads, s.key_dim}); };
  const auto v = [](const Sizes& s) { return gaussian({s.batch, s.time, s.heads, s.value_dim}); };
  const auto beta = [](const Sizes& s) { return at::rand({s.batch, s.time, s.heads}, kDouble); };
  const auto state = [](const Sizes& s) { return gaussian({s.batch, s.heads, s.key_dim, s.value_dim}); };
  const auto linear_inputs = [](const Tensors& x, int64_t chunk) {
    return LinearAttentionInputs{.q = x[0], .k = x[1], .v = x[2], .g = x[3], .state = x[4], .chunk = chunk};
  };
  const auto delta_inputs = [](const Tensors& x, int64_t chunk) {
    return GatedDeltaRuleInputs{
        .q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .state = x[5], .chunk = chunk};
  };
  const auto ssd_inputs = [](const Tensors& x, int64_t chunk) {
    return SsdInputs{.x = x[0], .dt = x[1], .a = x[4], .b = x[2], .c = x[3], .d = x[5], .state = x[6], .chunk = chunk};
  };
  const auto mesa_inputs = [](const Tensors& x, int64_t chunk) {
    return MesaInputs{
        .q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .lambda = x[5], .state = x[6], .chunk = chunk};
  };
  return {
      {"linear_attention",
       {"q", "k", "v", "g", "state"},
       4,
       [=](const Sizes& s) {
         return Tensors{q(s), q(s), v(s), decays(s), state(s)};
       },
       [=](const Tensors& x, int64_t chunk) { return linear_attention(linear_inputs(x, chunk)); },
       [=](const Tensors& x, int64_t chunk) { return linear_attention_recurrent(linear_inputs(x, chunk)); }},
      {"gated_delta_rule",
       {"q", "k", "v", "g", "beta", "state"},
       5,
       [=](const Sizes& s) { return Tensors{q(s), q(s), v(s), decays(s), beta(s), state(s)}; },
       [=](const Tensors& x, int64_t chunk) { return gated_delta_rule(delta_inputs(x, chunk)); },
       [=](const Tensors& x, int64_t chunk) { return gated_delta_rule_recurrent(delta_inputs(x, chunk)); }},
      {"ssd",
       {"x", "dt", "b", "c", "a", "d", "state"},
       4,
       [=](const Sizes& s) {
         const Tensor b = gaussian({s.batch, s.time, 1, s.key_dim}), c = gaussian({s.batch, s.time, 1, s.key_dim});
         return Tensors{v(s), beta(s), b, c, -gaussian({s.heads}).exp(), gaussian({s.heads}), state(s)};
       },
       [=](const Tensors& x, int64_t chunk) { return ssd(ssd_inputs(x, chunk)); },
       [=](const Tensors& x, int64_t chunk) { return ssd_recurrent(ssd_inputs(x, chunk)); }},
      {"mesa",
       {"q", "k", "v", "g", "beta", "lambda", "state"},
       5,
       [=](const Sizes& s) {
         const Tensor keys = gaussian({s.batch, s.heads, s.key_dim, s.key_dim}) / std::sqrt(s.key_dim);
         const Tensor start = at::cat({at::matmul(keys, keys.transpose(-1, -2)), state(s)}, -1);
         return Tensors{q(s), q(s), v(s), decays(s), beta(s), 0.25 + at::rand({s.heads, s.key_dim}, kDouble), start};
       },
       [=](const Tensors& x, int64_t chunk) { return mesa(mesa_inputs(x, chunk)); },
       [=](const Tensors& x, int64_t chunk) { return mesa_recurrent(mesa_inputs(x, chunk)); }},
  };
}

Tensors in_float(const Tensors& x) {
  Tensors result;
  for (const Tensor& tensor : x) result.push_back(tensor.to(at::kFloat));
  return result;
}

constexpr Backend kBackends[] = {Backend::fused, Backend::composed};

void PrintTo(const Recurrence& recurrence, std::ostream* out) { *out << recurrence.name; }

class Recurrences : public testing::TestWithParam<Recurrence> {
 protected:
  void SetUp() override { torch::manual_seed(7); }

  // The tensors along time between two tokens, and the state.
  Tensors piece(const Tensors& inputs, int64_t begin, int64_t end, const Tensor& state) const {
    Tensors result = inputs;
    for (int64_t i = 0; i < GetParam().along_time; ++i) result[i] = inputs[i].slice(1, begin, end);
    result.back() = state;
    return result;
  }

  const Recurrence& x = GetParam();
};

TEST_P(Recurrences, ChunksEqualTokens) {
  for (const int64_t time : {0, 1, 2, 63, 64, 65, 130}) {
    for (const int64_t chunk : {1, 16, 64}) {
      const Tensors inputs = x.inputs({.time = time});
      const RecurrenceResult actual = x.by_chunks(inputs, chunk), truth = x.by_tokens(inputs, chunk);
      EXPECT_TRUE(close(actual.o, truth.o, 1e-9)) << "time " << time << ", chunk " << chunk;
      EXPECT_TRUE(close(actual.state, truth.state, 1e-9)) << "time " << time << ", chunk " << chunk;
      const RecurrenceResult plain = x.by_tokens(in_float(inputs), chunk);
      for (const Backend backend : kBackends) {
        const BackendScope scope(backend);
        const RecurrenceResult single = x.by_chunks(in_float(inputs), chunk);
        EXPECT_TRUE(calibrated(single.o, plain.o, truth.o)) << "time " << time << ", chunk " << chunk;
        EXPECT_TRUE(calibrated(single.state, plain.state, truth.state)) << "time " << time << ", chunk " << chunk;
      }
    }
  }
}

TEST_P(Recurrences, LargeHeads) {
  const Tensors inputs = x.inputs({.batch = 1, .time = 200, .heads = 3, .key_dim = 32, .value_dim = 48});
  const RecurrenceResult plain = x.by_tokens(in_float(inputs), 64), truth = x.by_tokens(inputs, 64);
  for (const Backend backend : kBackends) {
    const BackendScope scope(backend);
    const RecurrenceResult single = x.by_chunks(in_float(inputs), 64);
    EXPECT_TRUE(calibrated(single.o, plain.o, truth.o));
    EXPECT_TRUE(calibrated(single.state, plain.state, truth.state));
  }
}

// Gradients of output and state in float, with and without a gradient of the state.
TEST_P(Recurrences, GradientsOfTheKernels) {
  for (const int64_t time : {1, 40, 130}) {
    for (const bool by_state : {false, true}) {
      const Tensors inputs = x.inputs({.time = time});
      const auto gradients = [&](const Tensors& from, bool tokens) {
        Tensors leaves;
        for (const Tensor& input : from) leaves.push_back(input.contiguous().clone().requires_grad_(true));
        const RecurrenceResult result = tokens ? x.by_tokens(leaves, 64) : x.by_chunks(leaves, 64);
        return torch::autograd::grad({weighted_sum(by_state ? Tensors{result.o, result.state} : Tensors{result.o})},
                                     leaves);
      };
      const Tensors truth = gradients(inputs, true), plain = gradients(in_float(inputs), true);
      const BackendScope scope(Backend::fused);
      const Tensors actual = gradients(in_float(inputs), false);
      for (size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_TRUE(calibrated(actual[i], plain[i], truth[i])) << x.arguments[i] << ", time " << time;
      }
    }
  }
}

// One token at a time in decode, where the state is overwritten.
TEST_P(Recurrences, StepsOfTheKernels) {
  const torch::NoGradGuard no_grad;
  const Tensors inputs = x.inputs({.time = 20}), single = in_float(inputs);
  const RecurrenceResult truth = x.by_tokens(inputs, 64), plain = x.by_tokens(single, 64);
  const BackendScope scope(Backend::fused);
  const Tensor state = single.back().clone();
  Tensors outputs;
  for (int64_t t = 0; t < 20; ++t) {
    const RecurrenceResult result = x.by_chunks(piece(single, t, t + 1, state), 64);
    EXPECT_EQ(result.state.data_ptr(), state.data_ptr());
    outputs.push_back(result.o);
  }
  EXPECT_TRUE(calibrated(at::cat(outputs, 1), plain.o, truth.o));
  EXPECT_TRUE(calibrated(state, plain.state, truth.state));
}

TEST_P(Recurrences, NoKernelsForDoubles) {
  const BackendScope scope(Backend::fused);
  EXPECT_THROW(x.by_chunks(x.inputs({.time = 4}), 4), std::invalid_argument);
}

TEST_P(Recurrences, NoStateIsZeros) {
  Tensors inputs = x.inputs({.time = 20});
  inputs.back() = at::zeros_like(inputs.back());
  const RecurrenceResult zeros = x.by_chunks(inputs, 16);
  inputs.back() = Tensor();
  const RecurrenceResult none = x.by_chunks(inputs, 16);
  EXPECT_TRUE(close(none.o, zeros.o, 0));
  EXPECT_TRUE(close(none.state, zeros.state, 0));
  EXPECT_TRUE(close(x.by_tokens(inputs, 16).o, zeros.o, 1e-9));
}

TEST_P(Recurrences, Gradients) {
  for (const auto& [time, chunk] : {std::pair{1, 4}, {7, 4}, {8, 4}}) {
    Tensors inputs = x.inputs({.time = time, .key_dim = 3, .value_dim = 2});
    std::vector<Named> named;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = inputs[i].contiguous();
      named.push_back({x.name + "." + x.arguments[i], inputs[i]});
    }
    expect_gradients(named, [&, chunk = chunk] {
      Tensors copies = inputs;
      copies.back() = inputs.back().clone();  // without gradients, one token overwrites its state
      const RecurrenceResult result = x.by_chunks(copies, chunk);
      return Tensors{result.o, result.state};
    });
  }
}

TEST_P(Recurrences, GradientsEqualThoseOfTheTokenLoop) {
  Tensors inputs = x.inputs({.time = 130});
  for (Tensor& input : inputs) input = input.contiguous().requires_grad_(true);
  const auto gradients = [&](const RecurrenceResult& result) {
    return torch::autograd::grad({weighted_sum({result.o, result.state})}, inputs);
  };
  const auto actual = gradients(x.by_chunks(inputs, 64)), truth = gradients(x.by_tokens(inputs, 64));
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(close(actual[i], truth[i], 1e-9)) << x.arguments[i];
}

TEST_P(Recurrences, PiecesCarryTheState) {
  const torch::NoGradGuard no_grad;
  const Tensors inputs = x.inputs({.time = 130});
  const RecurrenceResult whole = x.by_chunks(inputs, 64);
  Tensor state = inputs.back().clone();
  Tensors outputs;
  int64_t begin = 0;
  for (const int64_t end : {1, 2, 40, 104, 104, 130}) {
    const RecurrenceResult part = x.by_chunks(piece(inputs, begin, end, state), 64);
    outputs.push_back(part.o);
    state = part.state;
    begin = end;
  }
  EXPECT_TRUE(close(at::cat(outputs, 1), whole.o, 1e-9));
  EXPECT_TRUE(close(state, whole.state, 1e-9));
}

TEST_P(Recurrences, TheFutureDoesNotCount) {
  const Tensors inputs = x.inputs({.time = 130});
  const Tensor whole = x.by_chunks(inputs, 64).o;
  for (const int64_t time : {1, 63, 64, 100}) {
    Tensors changed = inputs;
    for (int64_t i = 0; i < x.along_time; ++i) {
      changed[i] = inputs[i].clone();
      changed[i].slice(1, time).mul_(0.5);
    }
    EXPECT_TRUE(close(x.by_chunks(changed, 64).o.slice(1, 0, time), whole.slice(1, 0, time), 0));
  }
}

// A call without tokens returns an equal state in a new tensor.
TEST_P(Recurrences, NoTokensCopyTheState) {
  const auto expect = [&](const Tensors& inputs) {
    for (const RecurrenceResult& result : {x.by_chunks(inputs, 16), x.by_tokens(inputs, 16)}) {
      EXPECT_TRUE(close(result.state, inputs.back(), 0));
      EXPECT_NE(result.state.data_ptr(), inputs.back().data_ptr());
    }
  };
  expect(x.inputs({.time = 0}));
  for (const Backend backend : kBackends) {
    const BackendScope scope(backend);
    expect(in_float(x.inputs({.time = 0})));
  }
}

TEST_P(Recurrences, BadShapesAreNamed) {
  const Tensors inputs = x.inputs({.time = 4});
  for (size_t i = 1; i < inputs.size(); ++i) {
    Tensors wrong = inputs;
    wrong[i] = at::zeros({3, 3, 3}, kDouble);
    EXPECT_THROW(x.by_chunks(wrong, 4), std::invalid_argument) << x.arguments[i];
  }
  EXPECT_THROW(x.by_chunks(inputs, 0), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(, Recurrences, testing::ValuesIn(recurrences()),
                         [](const auto& info) { return info.param.name; });

// The recurrences of q, k, v, g and beta over packed sequences (undefined `starts`: over one).
using PackedRun = std::function<Tensor(const Tensors& x, const Tensor& starts, bool tokens)>;

std::vector<std::pair<std::string, PackedRun>> packed_runs() {
  const auto per_head = [](const Tensors& x) { return -at::ones({x[0].size(2)}, x[0].options()); };
  return {{"gated_delta_rule",
           [](const Tensors& x, const Tensor& starts, bool tokens) {
             const GatedDeltaRuleInputs in{.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .starts = starts};
             return (tokens ? gated_delta_rule_recurrent(in) : gated_delta_rule(in)).o;
           }},
          {"linear_attention",
           [](const Tensors& x, const Tensor& starts, bool tokens) {
             const LinearAttentionInputs in{.q = x[0], .k = x[1], .v = x[2], .g = x[3], .starts = starts};
             return (tokens ? linear_attention_recurrent(in) : linear_attention(in)).o;
           }},
          {"no decays",
           [](const Tensors& x, const Tensor& starts, bool tokens) {
             const LinearAttentionInputs in{.q = x[0], .k = x[1], .v = x[2], .starts = starts};
             return (tokens ? linear_attention_recurrent(in) : linear_attention(in)).o;
           }},
          {"ssd",
           [=](const Tensors& x, const Tensor& starts, bool tokens) {
             const SsdInputs in{
                 .x = x[2], .dt = x[4], .a = per_head(x), .b = x[1], .c = x[0], .d = per_head(x), .starts = starts};
             return (tokens ? ssd_recurrent(in) : ssd(in)).o;
           }},
          {"mesa", [](const Tensors& x, const Tensor& starts, bool tokens) {
             const MesaInputs in{.q = x[0],
                                 .k = x[1],
                                 .v = x[2],
                                 .g = x[3],
                                 .beta = x[4],
                                 .lambda = at::ones({x[0].size(2), x[0].size(3)}, x[0].options()),
                                 .starts = starts};
             return (tokens ? mesa_recurrent(in) : mesa(in)).o;
           }}};
}

constexpr std::pair<int64_t, int64_t> kPieces[] = {{0, 30}, {30, 31}, {31, 70}, {70, 100}};

class Restarts : public testing::Test {
 protected:
  // Packed or not, in double and in float, by kernels and composed, by chunks and by tokens. The kernels take one row;
  // two rows are sequences that begin at the same tokens.
  void for_each_case(const std::function<void(const PackedRun& run, const Tensors& x, bool tokens)>& body) {
    for (const auto& [name, run] : packed_runs()) {
      for (const int64_t batch : {1, 2}) {
        torch::manual_seed(9);
        const Sizes s{.batch = batch, .time = 100};
        const Tensors wide = {unit({batch, 100, 2, 8}), unit({batch, 100, 2, 8}), gaussian({batch, 100, 2, 5}),
                              decays(s), at::rand({batch, 100, 2}, kDouble)};
        for (const bool tokens : {false, true}) {
          SCOPED_TRACE(testing::Message() << name << ", batch " << batch << (tokens ? ", tokens" : ""));
          body(run, wide, tokens);
          for (const Backend backend : kBackends) {
            const BackendScope scope(backend);
            body(run, in_float(wide), tokens);
          }
        }
      }
    }
  }

  static Tensors leaves(const Tensors& x) {
    Tensors copies;
    for (const Tensor& tensor : x) copies.push_back(tensor.clone().requires_grad_(true));
    return copies;
  }

  static Tensors gradients(const Tensor& o, const Tensors& x) {
    return torch::autograd::grad({weighted_sum({o})}, x, {}, false, false, true);
  }

  const Tensor starts = at::tensor({0, 30, 31, 70});
};

TEST_F(Restarts, EqualSequencesAlone) {
  for_each_case([&](const PackedRun& run, const Tensors& inputs, bool tokens) {
    const double tolerance = inputs[0].scalar_type() == at::kDouble ? 1e-9 : 1e-4;
    const Tensors x = leaves(inputs);
    Tensors parts;
    for (const auto& [begin, end] : kPieces) {
      Tensors piece;
      for (const Tensor& tensor : x) piece.push_back(tensor.slice(1, begin, end));
      parts.push_back(run(piece, Tensor(), tokens));
    }
    const Tensor packed = run(x, starts, tokens), alone = at::cat(parts, 1);
    EXPECT_TRUE(close(packed, alone, tolerance));
    const Tensors actual = gradients(packed, x), expected = gradients(alone, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(actual[i].defined(), expected[i].defined());
      if (expected[i].defined()) {
        EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << "gradient " << i;
      }
    }
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(close(run(inputs, starts, tokens), alone, tolerance));
  });
}

// A NaN in one sequence must not reach the others.
TEST_F(Restarts, SequencesDoNotSeeTheNansOfOthers) {
  for_each_case([&](const PackedRun& run, const Tensors& inputs, bool tokens) {
    Tensors bad;
    for (const Tensor& tensor : inputs) bad.push_back(tensor.clone());
    bad[1].select(1, 40).fill_(NAN);
    bad[2].select(1, 50).fill_(INFINITY);
    const Tensors x = leaves(inputs), y = leaves(bad);
    const Tensor clean = run(x, starts, tokens), o = run(y, starts, tokens);
    EXPECT_TRUE(at::isnan(o.slice(1, 40, 41)).any().item<bool>());
    const Tensors expected = gradients(clean, x), actual = gradients(o, y);
    const torch::NoGradGuard no_grad;
    const Tensor inferred = run(bad, starts, tokens);
    for (const auto& [begin, end] : kPieces) {
      if (begin == 31) continue;
      const auto part = [&, begin = begin, end = end](const Tensor& z) { return z.slice(1, begin, end); };
      EXPECT_TRUE(close(part(o), part(clean), 0)) << "from " << begin;
      EXPECT_TRUE(close(part(inferred), part(clean), 1e-6)) << "from " << begin;
      for (size_t i = 0; i < x.size(); ++i) {
        if (!expected[i].defined()) continue;
        EXPECT_TRUE(close(part(actual[i]), part(expected[i]), 0)) << "gradient " << i << " from " << begin;
      }
    }
  });
}

TEST_F(Restarts, BeginWithTheFirstToken) {
  const Tensor q = unit({1, 4, 1, 2});
  EXPECT_THROW(linear_attention({.q = q, .k = q, .v = q, .starts = at::tensor({1, 2})}), std::invalid_argument);
}

// Repeated keys written at full strength: the worst case for the inverse.
TEST(GatedDeltaRule, RepeatedKeys) {
  torch::manual_seed(8);
  const Tensor k = unit({1, 1, 1, 8}).expand({1, 128, 1, 8}), v = gaussian({1, 128, 1, 4}),
               ones = at::ones({1, 128, 1}, kDouble);
  const GatedDeltaRuleInputs inputs{.q = k, .k = k, .v = v, .g = ones * 0, .beta = ones};
  EXPECT_TRUE(close(gated_delta_rule(inputs).o, gated_delta_rule_recurrent(inputs).o, 1e-9));
}

}  // namespace
}  // namespace ovq::ops::test
