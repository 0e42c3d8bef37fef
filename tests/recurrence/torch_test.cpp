// Every linear recurrence as a function of tensors: outputs, states and gradients against the plain loops, and the
// consistency between calls.
#include "ovq/ops/gated_delta_rule/torch.h"
#include "ovq/ops/gated_delta_rule/reference.h"
#include "ovq/ops/linear_attention/torch.h"
#include "ovq/ops/mesa/reference.h"
#include "ovq/ops/mesa/torch.h"
#include "ovq/ops/ssd/reference.h"
#include "ovq/ops/ssd/torch.h"
#include "tests/ops/reference_tensors.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::ops::test {
namespace {

namespace reference = kernels::reference;

using Tensors = std::vector<Tensor>;

struct Sizes {
  int64_t batch = 2, time = 130, heads = 2, key_dim = 8, value_dim = 5;
};

// The plain loops of one head of one sequence: o, the state after it, and gradients of sum(o d_o) + sum(state d_state)
// in the order of the arguments.
using HeadLoop = Tensors (*)(const Tensors& x, const Tensor& d_o, const Tensor& d_state);

// A recurrence as a function of a list of tensors: those along time first, then those of heads, the state last.
struct Recurrence {
  std::string name;
  std::vector<std::string> arguments;
  int64_t along_time;
  std::function<Tensors(const Sizes&)> inputs;
  std::function<RecurrenceResult(const Tensors&)> call;
  HeadLoop in_float, in_double;
};

template <class Scalar>
Scalar scale_of(const Tensor& q) {
  return 1 / std::sqrt(static_cast<Scalar>(q.size(1)));
}

template <class Scalar>
Tensors linear_loop(const Tensors& x, const Tensor& d_o, const Tensor& d_state) {
  const reference::LinearHead<Scalar> head{matrix_of<Scalar>(x[0]), matrix_of<Scalar>(x[1]), matrix_of<Scalar>(x[2]),
                                           vector_of<Scalar>(x[3]), scale_of<Scalar>(x[0]),  matrix_of<Scalar>(x[4])};
  const auto forward = reference::linear_attention_forward(head);
  const auto d =
      reference::linear_attention_backward(head, forward, matrix_of<Scalar>(d_o), matrix_of<Scalar>(d_state));
  return {tensor_of(forward.o), tensor_of(forward.states.back()),
          tensor_of(d.d_q),     tensor_of(d.d_k),
          tensor_of(d.d_v),     tensor_of(d.d_g),
          tensor_of(d.d_state)};
}

template <class Scalar>
Tensors delta_loop(const Tensors& x, const Tensor& d_o, const Tensor& d_state) {
  const reference::DeltaHead<Scalar> head{matrix_of<Scalar>(x[0]), matrix_of<Scalar>(x[1]), matrix_of<Scalar>(x[2]),
                                          vector_of<Scalar>(x[3]), vector_of<Scalar>(x[4]), scale_of<Scalar>(x[0]),
                                          matrix_of<Scalar>(x[5])};
  const auto forward = reference::gated_delta_rule_forward(head);
  const auto d =
      reference::gated_delta_rule_backward(head, forward, matrix_of<Scalar>(d_o), matrix_of<Scalar>(d_state));
  return {tensor_of(forward.o), tensor_of(forward.states.back()),
          tensor_of(d.d_q),     tensor_of(d.d_k),
          tensor_of(d.d_v),     tensor_of(d.d_g),
          tensor_of(d.d_beta),  tensor_of(d.d_state)};
}

template <class Scalar>
Tensors ssd_loop(const Tensors& x, const Tensor& d_o, const Tensor& d_state) {
  const auto number = [](const Tensor& y) { return y.item<Scalar>(); };
  const reference::SsdHead<Scalar> head{
      matrix_of<Scalar>(x[0]), vector_of<Scalar>(x[1]), number(x[4]),           number(x[5]),
      matrix_of<Scalar>(x[2]), matrix_of<Scalar>(x[3]), matrix_of<Scalar>(x[6])};
  const auto forward = reference::ssd_forward(head);
  const auto d = reference::ssd_backward(head, forward, matrix_of<Scalar>(d_o), matrix_of<Scalar>(d_state));
  return {tensor_of(forward.o),
          tensor_of(forward.states.back()),
          tensor_of(d.d_x),
          tensor_of(d.d_dt),
          tensor_of(d.d_b),
          tensor_of(d.d_c),
          at::scalar_tensor(d.d_a, kTypeOf<Scalar>),
          at::scalar_tensor(d.d_d, kTypeOf<Scalar>),
          tensor_of(d.d_state)};
}

template <class Scalar>
Tensors mesa_loop(const Tensors& x, const Tensor& d_o, const Tensor& d_state) {
  const reference::MesaHead<Scalar> head{matrix_of<Scalar>(x[0]), matrix_of<Scalar>(x[1]), matrix_of<Scalar>(x[2]),
                                         vector_of<Scalar>(x[3]), vector_of<Scalar>(x[4]), vector_of<Scalar>(x[5]),
                                         matrix_of<Scalar>(x[6])};
  const auto forward = reference::mesa_forward(head);
  const auto d = reference::mesa_backward(head, forward, matrix_of<Scalar>(d_o), matrix_of<Scalar>(d_state));
  return {tensor_of(forward.o), tensor_of(forward.states.back()),
          tensor_of(d.d_q),     tensor_of(d.d_k),
          tensor_of(d.d_v),     tensor_of(d.d_g),
          tensor_of(d.d_beta),  tensor_of(d.d_lambda),
          tensor_of(d.d_state)};
}

Tensor gaussian(at::IntArrayRef shape) { return at::randn(shape); }
Tensor unit(at::IntArrayRef shape) {
  const Tensor x = gaussian(shape);
  return x / x.norm(2, {-1}, true);
}

// Decays from none to nearly total, so that weak ones follow strong ones in the same chunk.
Tensor decays(const Sizes& s) {
  return -(2 * gaussian({s.batch, s.time, s.heads}) - 1).exp() - 50 * at::rand({s.batch, s.time, s.heads}).gt(0.98);
}

std::vector<Recurrence> recurrences() {
  const auto q = [](const Sizes& s) { return unit({s.batch, s.time, s.heads, s.key_dim}); };
  const auto v = [](const Sizes& s) { return gaussian({s.batch, s.time, s.heads, s.value_dim}); };
  const auto beta = [](const Sizes& s) { return at::rand({s.batch, s.time, s.heads}); };
  const auto state = [](const Sizes& s) { return gaussian({s.batch, s.heads, s.key_dim, s.value_dim}); };
  return {
      {"linear_attention",
       {"q", "k", "v", "g", "state"},
       4,
       [=](const Sizes& s) {
         return Tensors{q(s), q(s), v(s), decays(s), state(s)};
       },
       [](const Tensors& x) { return linear_attention({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .state = x[4]}); },
       linear_loop<float>,
       linear_loop<double>},
      {"gated_delta_rule",
       {"q", "k", "v", "g", "beta", "state"},
       5,
       [=](const Sizes& s) { return Tensors{q(s), q(s), v(s), decays(s), beta(s), state(s)}; },
       [](const Tensors& x) {
         return gated_delta_rule({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .state = x[5]});
       },
       delta_loop<float>,
       delta_loop<double>},
      {"ssd",
       {"x", "dt", "b", "c", "a", "d", "state"},
       4,
       [=](const Sizes& s) {
         const Tensor b = gaussian({s.batch, s.time, 1, s.key_dim}), c = gaussian({s.batch, s.time, 1, s.key_dim});
         return Tensors{v(s), beta(s), b, c, -gaussian({s.heads}).exp(), gaussian({s.heads}), state(s)};
       },
       [](const Tensors& x) {
         return ssd({.x = x[0], .dt = x[1], .a = x[4], .b = x[2], .c = x[3], .d = x[5], .state = x[6]});
       },
       ssd_loop<float>,
       ssd_loop<double>},
      {"mesa",
       {"q", "k", "v", "g", "beta", "lambda", "state"},
       5,
       [=](const Sizes& s) {
         const Tensor keys = gaussian({s.batch, s.heads, s.key_dim, s.key_dim}) / std::sqrt(s.key_dim);
         const Tensor start = at::cat({at::matmul(keys, keys.transpose(-1, -2)), state(s)}, -1);
         return Tensors{q(s), q(s), v(s), decays(s), beta(s), 0.25 + at::rand({s.heads, s.key_dim}), start};
       },
       [](const Tensors& x) {
         return mesa({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .lambda = x[5], .state = x[6]});
       },
       mesa_loop<float>,
       mesa_loop<double>},
  };
}

// Gradients of weighted_sum({x}) by x
Tensor weights_of(const Tensor& x) {
  return at::arange(x.numel(), kDouble).mul(0.7).cos().view_as(x).to(x.scalar_type());
}

Tensors leaves(const Tensors& x) {
  Tensors copies;
  for (const Tensor& tensor : x) copies.push_back(tensor.detach().clone().requires_grad_(true));
  return copies;
}

// Of weighted_sum(outputs); zeros by what no output depends on.
Tensors gradients(const Tensors& outputs, const Tensors& x) {
  Tensors found = torch::autograd::grad({weighted_sum(outputs)}, x, {}, false, false, true);
  for (size_t i = 0; i < x.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(x[i]);
  }
  return found;
}

void PrintTo(const Recurrence& recurrence, std::ostream* out) { *out << recurrence.name; }

class Recurrences : public testing::TestWithParam<Recurrence> {
 protected:
  void SetUp() override { torch::manual_seed(7); }

  // o, state, and gradients of weighted_sum({o, state}), by the plain loops.
  Tensors by_loops(const Tensors& inputs, at::ScalarType type) const {
    const int64_t batch = inputs[0].size(0), heads = inputs.back().size(1);
    const Tensor& values = inputs[x.name == "ssd" ? 0 : 2];
    Tensors results = {at::zeros(values.sizes(), type), at::zeros(inputs.back().sizes(), type)};
    const Tensor d_o = weights_of(at::empty_like(values)), d_state = weights_of(at::empty_like(inputs.back()));
    for (const Tensor& input : inputs) results.push_back(at::zeros(input.sizes(), type));
    // Heads of a group share the tensors that have fewer of them.
    const auto along_time = [&](const Tensor& y, int64_t b, int64_t h) {
      return y.select(0, b).select(1, h * y.size(2) / heads);
    };
    const auto part = [&](const Tensor& y, size_t i, int64_t b, int64_t h) {
      if (static_cast<int64_t>(i) < x.along_time) return along_time(y, b, h);
      return i + 1 == inputs.size() ? y[b][h] : y[h];
    };
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        Tensors parts;
        for (size_t i = 0; i < inputs.size(); ++i) parts.push_back(part(inputs[i], i, b, h));
        const Tensors found =
            (type == at::kDouble ? x.in_double : x.in_float)(parts, along_time(d_o, b, h), d_state[b][h]);
        along_time(results[0], b, h).copy_(found[0]);
        results[1][b][h].copy_(found[1]);
        for (size_t i = 0; i < inputs.size(); ++i) part(results[i + 2], i, b, h).add_(found[i + 2]);
      }
    }
    return results;
  }

  // The same by the op.
  Tensors by_op(const Tensors& inputs) const {
    const Tensors copies = leaves(inputs);
    const RecurrenceResult result = x.call(copies);
    Tensors results = {result.o, result.state};
    for (const Tensor& gradient : gradients({result.o, result.state}, copies)) results.push_back(gradient);
    return results;
  }

  void expect_as_good_as_loops(const Tensors& actual, const Tensors& inputs) const {
    const Tensors plain = by_loops(inputs, at::kFloat), truth = by_loops(inputs, at::kDouble);
    for (size_t i = 0; i < actual.size(); ++i) {
      // Gradients by what all tokens share are sums over them, of products of states.
      const bool shared = i >= 2 && static_cast<int64_t>(i) - 2 >= x.along_time && i + 1 < truth.size();
      const Tensor& state = inputs.back();
      const int64_t terms = inputs[0].size(0) * inputs[0].size(1) * state.size(2) * state.size(3);
      const double magnitude = shared ? std::sqrt(static_cast<double>(std::max<int64_t>(1, terms))) : 1;
      EXPECT_TRUE(calibrated(actual[i], plain[i], truth[i], 2e-6 * magnitude))
          << (i == 0   ? "o"
              : i == 1 ? "state"
                       : "gradient by " + x.arguments[i - 2]);
    }
  }

  // The tensors along time between two tokens, and the state.
  Tensors piece(const Tensors& inputs, int64_t begin, int64_t end, const Tensor& state) const {
    Tensors result = inputs;
    for (int64_t i = 0; i < x.along_time; ++i) result[i] = inputs[i].slice(1, begin, end);
    result.back() = state;
    return result;
  }

  const Recurrence& x = GetParam();
};

// What the gradients of all other tests rest on: along random directions, in double.
TEST_P(Recurrences, GradientsOfThePlainLoopsAreCentralDifferences) {
  Tensors inputs = x.inputs({.time = 7, .key_dim = 3, .value_dim = 2});
  for (Tensor& input : inputs) input = input.to(at::kDouble);
  const Tensors results = by_loops(inputs, at::kDouble);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int direction = 0; direction < 4; ++direction) {
      Tensor along = at::randn_like(inputs[i]);
      if (x.name == "mesa" && i + 1 == inputs.size()) {  // H stays symmetric
        Tensor h = along.narrow(-1, 0, 3);
        h.copy_((h + h.transpose(-1, -2)).clone());
      }
      along = along / along.norm();
      const auto at = [&](double distance) {
        Tensors moved = inputs;
        moved[i] = inputs[i] + distance * along;
        const Tensors found = by_loops(moved, at::kDouble);
        return weighted_sum({found[0], found[1]}).item<double>();
      };
      constexpr double kStep = 1e-4;
      const double near = at(kStep) - at(-kStep), far = at(2 * kStep) - at(-2 * kStep);
      const Tensor numeric = at::scalar_tensor((8 * near - far) / (12 * kStep), at::kDouble);
      EXPECT_TRUE(close((results[i + 2] * along).sum(), numeric, 1e-7)) << x.arguments[i];
    }
  }
}

TEST_P(Recurrences, EqualThePlainLoops) {
  for (const int64_t time : {0, 1, 2, 31, 32, 33, 65, 130}) {
    SCOPED_TRACE(time);
    const Tensors inputs = x.inputs({.time = time});
    const Tensors actual = by_op(inputs);
    expect_as_good_as_loops(actual, inputs);
    // Without gradients the same kernels run, in decode over the state.
    const torch::NoGradGuard no_grad;
    Tensors copies = inputs;
    copies.back() = inputs.back().clone();
    const RecurrenceResult inferred = x.call(copies);
    EXPECT_TRUE(close(inferred.o, actual[0], 0));
    EXPECT_TRUE(close(inferred.state, actual[1], 0));
  }
}

// One token at a time in decode, where the state moves on in place.
TEST_P(Recurrences, OneTokenOverwritesTheState) {
  const torch::NoGradGuard no_grad;
  const Tensors inputs = x.inputs({.time = 20});
  const Tensor state = inputs.back().clone();
  Tensors outputs;
  for (int64_t t = 0; t < 20; ++t) {
    const RecurrenceResult result = x.call(piece(inputs, t, t + 1, state));
    EXPECT_EQ(result.state.data_ptr(), state.data_ptr());
    outputs.push_back(result.o);
  }
  expect_as_good_as_loops({at::cat(outputs, 1), state}, inputs);
}

// But not one that belongs to a graph, or that a graph may be made of.
TEST_P(Recurrences, StatesOfGraphsStayAsTheyAre) {
  const auto expect_another = [&](const Tensor& state, const Tensors& inputs) {
    const Tensor before = state.detach().clone();
    EXPECT_NE(x.call(piece(inputs, 0, 1, state)).state.data_ptr(), state.data_ptr());
    EXPECT_TRUE(close(state, before, 0));
  };
  const Tensors inputs = x.inputs({.time = 1});
  expect_another(inputs.back().clone(), inputs);
  const torch::NoGradGuard no_grad;
  expect_another(inputs.back().clone().requires_grad_(true), inputs);
}

TEST_P(Recurrences, PiecesCarryTheState) {
  const Tensors inputs = x.inputs({.time = 130});
  const auto in_pieces = [&](const Tensors& tensors, const Tensor& start) {
    Tensor state = start;
    Tensors outputs;
    int64_t begin = 0;
    for (const int64_t end : {1, 2, 40, 104, 104, 130}) {
      const RecurrenceResult part = x.call(piece(tensors, begin, end, state));
      outputs.push_back(part.o);
      state = part.state;
      begin = end;
    }
    return Tensors{at::cat(outputs, 1), state};
  };
  const Tensors copies = leaves(inputs);
  Tensors results = in_pieces(copies, copies.back());
  for (const Tensor& gradient : gradients({results[0], results[1]}, copies)) results.push_back(gradient);
  expect_as_good_as_loops(results, inputs);
  const torch::NoGradGuard no_grad;
  expect_as_good_as_loops(in_pieces(inputs, inputs.back().clone()), inputs);
}

TEST_P(Recurrences, NoStateIsZeros) {
  Tensors inputs = x.inputs({.time = 20});
  inputs.back() = at::zeros_like(inputs.back());
  const RecurrenceResult zeros = x.call(inputs);
  inputs.back() = Tensor();
  const RecurrenceResult none = x.call(inputs);
  EXPECT_TRUE(close(none.o, zeros.o, 0));
  EXPECT_TRUE(close(none.state, zeros.state, 0));
}

TEST_P(Recurrences, TheFutureDoesNotCount) {
  const Tensors inputs = x.inputs({.time = 130});
  const Tensor whole = x.call(inputs).o;
  for (const int64_t time : {1, 31, 32, 63, 64, 100}) {
    Tensors changed = inputs;
    for (int64_t i = 0; i < x.along_time; ++i) {
      changed[i] = inputs[i].clone();
      changed[i].slice(1, time).mul_(0.5);
    }
    EXPECT_TRUE(close(x.call(changed).o.slice(1, 0, time), whole.slice(1, 0, time), 0));
  }
}

// A call without tokens returns an equal state in a new tensor, and its gradient passes.
TEST_P(Recurrences, NoTokensCopyTheState) {
  const Tensors inputs = leaves(x.inputs({.time = 0}));
  const RecurrenceResult result = x.call(inputs);
  EXPECT_EQ(result.o.size(1), 0);
  EXPECT_TRUE(close(result.state, inputs.back(), 0));
  EXPECT_NE(result.state.data_ptr(), inputs.back().data_ptr());
  EXPECT_TRUE(close(gradients({result.state}, inputs).back(), weights_of(result.state), 0));
  EXPECT_EQ(x.call(x.inputs({.batch = 0, .time = 3})).state.size(0), 0);
}

// bfloat16 and half are converted, and o is back in q's dtype; the state stays in float32.
TEST_P(Recurrences, HalvesAreConverted) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    Tensors narrow, wide;
    for (const Tensor& input : x.inputs({.time = 20})) {
      narrow.push_back(input.to(type).requires_grad_(true));
      wide.push_back(narrow.back().detach().to(at::kFloat).requires_grad_(true));
    }
    const RecurrenceResult actual = x.call(narrow), expected = x.call(wide);
    EXPECT_EQ(actual.o.scalar_type(), type);
    EXPECT_EQ(actual.state.scalar_type(), at::kFloat);
    EXPECT_TRUE(close(actual.o, expected.o.to(type), 0));
    EXPECT_TRUE(close(actual.state, expected.state, 0));
    const Tensor d_o = weights_of(expected.o.detach()).to(type), d_state = weights_of(expected.state.detach());
    const Tensors found = torch::autograd::grad({actual.o, actual.state}, narrow, {d_o, d_state});
    const Tensors truth = torch::autograd::grad({expected.o, expected.state}, wide, {d_o.to(at::kFloat), d_state});
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(close(found[i], truth[i].to(type), 0)) << x.arguments[i];
  }
}

TEST_P(Recurrences, StridesDoNotCount) {
  const Tensors inputs = x.inputs({.time = 40});
  Tensors strided;
  for (const Tensor& input : inputs) strided.push_back(at::stack({input, input.neg()}, -1).select(-1, 0));
  const Tensors actual = by_op(strided), expected = by_op(inputs);
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(close(actual[i], expected[i], 0)) << i;
}

TEST_P(Recurrences, SecondDerivativesAreAnError) {
  const Tensors inputs = leaves(x.inputs({.time = 3}));
  const auto first = torch::autograd::grad({weighted_sum({x.call(inputs).o})}, inputs, {}, true, true);
  try {
    torch::autograd::grad({weighted_sum({first[0]})}, {inputs[1]}, {}, true, false, true);
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("[" + x.name + "]"), std::string::npos) << error.what();
  }
}

TEST_P(Recurrences, BadInputIsNamed) {
  const Tensors inputs = x.inputs({.time = 4});
  for (size_t i = 1; i < inputs.size(); ++i) {
    Tensors wrong = inputs;
    wrong[i] = at::zeros({3, 3, 3});
    const std::string message = message_of([&] { x.call(wrong); });
    EXPECT_EQ(message.find("[" + x.name + "] " + x.arguments[i] + " "), 0u) << message;
  }
  Tensors doubles = inputs, meta = inputs;
  for (Tensor& tensor : doubles) tensor = tensor.to(at::kDouble);
  for (Tensor& tensor : meta) tensor = tensor.to(at::kMeta);
  const std::string start = "[" + x.name + "] " + x.arguments[0] + " is ";
  EXPECT_EQ(message_of([&] { x.call(doubles); }).find(start + "Double on cpu"), 0u);
  EXPECT_EQ(message_of([&] { x.call(meta); }).find(start + "Float on meta"), 0u);
}

INSTANTIATE_TEST_SUITE_P(, Recurrences, testing::ValuesIn(recurrences()),
                         [](const auto& info) { return info.param.name; });

// The recurrences of q, k, v, g and beta over packed sequences (undefined `starts`: over one).
struct PackedRun {
  std::string name;
  Tensor (*call)(const Tensors& x, const Tensor& starts);
};

std::vector<PackedRun> packed_runs() {
  return {
      {"gated_delta_rule",
       [](const Tensors& x, const Tensor& starts) {
         return gated_delta_rule({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .starts = starts}).o;
       }},
      {"linear_attention",
       [](const Tensors& x, const Tensor& starts) {
         return linear_attention({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .starts = starts}).o;
       }},
      {"no_decays",
       [](const Tensors& x, const Tensor& starts) {
         return linear_attention({.q = x[0], .k = x[1], .v = x[2], .starts = starts}).o;
       }},
      {"ssd",
       [](const Tensors& x, const Tensor& starts) {
         const Tensor per_head = -at::ones({x[0].size(2)});
         return ssd({.x = x[2], .dt = x[4], .a = per_head, .b = x[1], .c = x[0], .d = per_head, .starts = starts}).o;
       }},
      {"mesa", [](const Tensors& x, const Tensor& starts) {
         return mesa({.q = x[0],
                      .k = x[1],
                      .v = x[2],
                      .g = x[3],
                      .beta = x[4],
                      .lambda = at::ones({x[0].size(2), x[0].size(3)}),
                      .starts = starts})
             .o;
       }}};
}

void PrintTo(const PackedRun& run, std::ostream* out) { *out << run.name; }

constexpr std::pair<int64_t, int64_t> kPieces[] = {{0, 30}, {30, 31}, {31, 70}, {70, 100}};

class Restarts : public testing::TestWithParam<PackedRun> {
 protected:
  void SetUp() override { torch::manual_seed(9); }

  static Tensors packed(int64_t batch) {
    const Sizes s{.batch = batch, .time = 100};
    return {unit({batch, 100, 2, 8}), unit({batch, 100, 2, 8}), gaussian({batch, 100, 2, 5}), decays(s),
            at::rand({batch, 100, 2})};
  }

  const PackedRun& run = GetParam();
  const Tensor starts = at::tensor({0, 30, 31, 31, 70});  // one is empty
};

TEST_P(Restarts, EqualSequencesAlone) {
  const Tensors inputs = packed(1), x = leaves(inputs);
  Tensors parts;
  for (const auto& [begin, end] : kPieces) {
    Tensors piece;
    for (const Tensor& tensor : x) piece.push_back(tensor.slice(1, begin, end));
    parts.push_back(run.call(piece, Tensor()));
  }
  const Tensor together = run.call(x, starts), alone = at::cat(parts, 1);
  EXPECT_TRUE(close(together, alone, 0));
  const Tensors actual = gradients({together}, x), expected = gradients({alone}, x);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(close(actual[i], expected[i], 0)) << "gradient " << i;
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(close(run.call(inputs, starts), alone, 0));
}

// A NaN in one sequence must not reach the others.
TEST_P(Restarts, SequencesDoNotSeeTheNansOfOthers) {
  const Tensors inputs = packed(1);
  Tensors bad;
  for (const Tensor& tensor : inputs) bad.push_back(tensor.clone());
  bad[1].select(1, 40).fill_(NAN);
  bad[2].select(1, 50).fill_(INFINITY);
  const Tensors x = leaves(inputs), y = leaves(bad);
  const Tensor clean = run.call(x, starts), o = run.call(y, starts);
  EXPECT_TRUE(at::isnan(o.slice(1, 40, 41)).any().item<bool>());
  const Tensors expected = gradients({clean}, x), actual = gradients({o}, y);
  const torch::NoGradGuard no_grad;
  const Tensor inferred = run.call(bad, starts);
  for (const auto& [begin, end] : kPieces) {
    if (begin == 31) continue;
    const auto part = [&, begin = begin, end = end](const Tensor& z) { return z.slice(1, begin, end); };
    EXPECT_TRUE(close(part(o), part(clean), 0)) << "from " << begin;
    EXPECT_TRUE(close(part(inferred), part(clean), 0)) << "from " << begin;
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_TRUE(close(part(actual[i]), part(expected[i]), 0)) << "gradient " << i << " from " << begin;
    }
  }
}

TEST_P(Restarts, BadStartsAreAnError) {
  const Tensors x = packed(1);
  EXPECT_THROW(run.call(x, at::tensor({1, 2})), std::invalid_argument);
  EXPECT_THROW(run.call(x, at::tensor({0, 5, 3})), std::invalid_argument);
  EXPECT_THROW(run.call(packed(2), starts), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(, Restarts, testing::ValuesIn(packed_runs()),
                         [](const auto& info) { return info.param.name; });

// Repeated keys written at full strength: the worst case for the triangular solve.
TEST(GatedDeltaRule, RepeatedKeys) {
  torch::manual_seed(8);
  const Tensor k = unit({1, 8}).expand({128, 8}), v = gaussian({128, 4}), ones = at::ones({128});
  const Tensor actual = gated_delta_rule({.q = k.view({1, 128, 1, 8}),
                                          .k = k.view({1, 128, 1, 8}),
                                          .v = v.view({1, 128, 1, 4}),
                                          .g = at::zeros({1, 128, 1}),
                                          .beta = ones.view({1, 128, 1})})
                            .o.view({128, 4});
  const Tensors x = {k, k, v, 0 * ones, ones, at::zeros({8, 4})};
  EXPECT_TRUE(calibrated(actual, delta_loop<float>(x, v, x[5])[0], delta_loop<double>(x, v, x[5])[0]));
}

}  // namespace
}  // namespace ovq::ops::test
