// The recurrences, forward and backward, against the plain loops, and the consistency between calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/gated_delta_rule/gated_delta_rule.h"
#include "ovq/ops/gated_delta_rule/reference.h"
#include "ovq/ops/linear_attention/linear_attention.h"
#include "ovq/ops/linear_attention/reference.h"
#include "ovq/ops/mesa/mesa.h"
#include "ovq/ops/mesa/reference.h"
#include "ovq/ops/recurrence/run.h"
#include "ovq/ops/ssd/reference.h"
#include "ovq/ops/ssd/ssd.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"

namespace ovq::kernels::test {
namespace {

using reference::Matrix;

enum class Rule { linear, delta, ssd, mesa };

struct RecurrenceCase {
  Rule rule = Rule::linear;
  int64_t batch = 1, time = 33, groups = 1, heads = 1, key_dim = 16, value_dim = 16;
  Layout layout = Layout::dense;
  bool state = true, strong = false;  // strong: some decays forget nearly all
  std::vector<int64_t> cu_seqlens;
  uint64_t seed = 1;

  int64_t sequences() const { return cu_seqlens.empty() ? batch : static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t state_columns() const { return rule == Rule::mesa ? key_dim + value_dim : value_dim; }
};

std::ostream& operator<<(std::ostream& out, const RecurrenceCase& c) {
  out << "rule " << static_cast<int>(c.rule) << ", batch " << c.batch << ", time " << c.time << ", heads " << c.groups
      << "/" << c.heads << ", dims " << c.key_dim << "/" << c.value_dim << ", layout " << static_cast<int>(c.layout)
      << ", state " << c.state << ", strong " << c.strong;
  for (int64_t offset : c.cu_seqlens) out << ", " << offset;
  return out;
}

struct RecurrenceProblem {
  explicit RecurrenceProblem(const RecurrenceCase& c) : c(c) {
    Random random(c.seed);
    q = unit_tensor({c.batch, c.time, c.groups, c.key_dim}, c.layout, random);
    k = unit_tensor({c.batch, c.time, c.groups, c.key_dim}, c.layout, random);
    v = random_tensor({c.batch, c.time, c.heads, c.value_dim}, c.layout, random);
    d_o = random_tensor({c.batch, c.time, c.heads, c.value_dim}, c.layout, random);
    g = random_tensor({c.batch, c.time, c.heads, 1}, c.layout, random);
    g.each_row([&](float* x) { *x = -std::exp(2 * *x - 2) - (c.strong && random.below(20) == 0 ? 50.0f : 0.0f); });
    beta = random_tensor({c.batch, c.time, c.heads, 1}, c.layout, random);
    beta.each_row([](float* x) { *x = 1 / (1 + std::exp(-*x)); });
    state = random_tensor({c.sequences(), c.key_dim, c.heads, c.state_columns()}, c.layout, random);
    d_state = random_tensor({c.sequences(), c.key_dim, c.heads, c.state_columns()}, c.layout, random);
    if (c.rule == Rule::mesa) make_symmetric(random);
    for (int64_t i = 0; i < c.heads * c.key_dim; ++i) lambda.push_back(0.25f + std::abs(random.normal()));
    for (int64_t i = 0; i < c.heads; ++i) {
      a.push_back(-std::exp(random.normal()));
      d.push_back(random.normal());
    }
  }

  // H = X X^T / key_dim
  void make_symmetric(Random& random) {
    for (int64_t s = 0; s < c.sequences(); ++s) {
      for (int64_t h = 0; h < c.heads; ++h) {
        Matrix<float> x(c.key_dim, c.key_dim);
        for (float& value : x.data) value = random.normal();
        for (int64_t i = 0; i < c.key_dim; ++i) {
          for (int64_t j = 0; j < c.key_dim; ++j) {
            state.row(s, i, h)[j] = reference::dot(x[i], x[j], c.key_dim) / static_cast<float>(c.key_dim);
          }
        }
      }
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(c.key_dim)); }
  View<const float> state_in() const { return c.state ? View<const float>(state.view()) : View<const float>(); }

  RecurrenceCase c;
  Tensor q, k, v, g, beta, d_o, state, d_state;
  std::vector<float> lambda, a, d;
};

template <class Scalar>
using Values = std::map<std::string, std::vector<Scalar>>;

template <class Inputs>
AlignedFloats saved_for(const Inputs& in) {
  return AlignedFloats(saved_floats(in), std::numeric_limits<float>::quiet_NaN());
}

Values<float> run(const RecurrenceProblem& p) {
  const RecurrenceCase& c = p.c;
  const auto like = [&](const Tensor& x) {
    const View<float> view = x.view();
    return Tensor({view.batch, view.time, view.heads, view.dim}, c.layout);
  };
  const Tensor alone = like(p.v), after_alone = like(p.state);  // without what backward needs
  const Tensor o = like(p.v), after = like(p.state), d_q = like(p.q), d_k = like(p.k), d_v = like(p.v), d_g = like(p.g),
               d_beta = like(p.g), d_before = like(p.state), solution = like(p.q);
  std::vector<float> d_lambda(p.lambda.size()), d_a(p.a.size()), d_d(p.d.size());
  const View<const float> d_o = p.d_o.view(), d_after = p.d_state.view();
  switch (c.rule) {
    case Rule::linear: {
      const LinearAttentionInputs in{.q = p.q.view(),
                                     .k = p.k.view(),
                                     .v = p.v.view(),
                                     .g = p.g.view(),
                                     .scale = p.scale(),
                                     .state = p.state_in(),
                                     .cu_seqlens = c.cu_seqlens};
      AlignedFloats saved = saved_for(in);
      linear_attention_forward(in, {.o = o.view(), .state = after.view(), .saved = saved});
      linear_attention_forward(in, {.o = alone.view(), .state = after_alone.view(), .saved = {}});
      linear_attention_backward(
          in, saved, d_o, d_after,
          {.d_q = d_q.view(), .d_k = d_k.view(), .d_v = d_v.view(), .d_g = d_g.view(), .d_state = d_before.view()});
      break;
    }
    case Rule::delta: {
      const GatedDeltaRuleInputs in{.q = p.q.view(),
                                    .k = p.k.view(),
                                    .v = p.v.view(),
                                    .g = p.g.view(),
                                    .beta = p.beta.view(),
                                    .scale = p.scale(),
                                    .state = p.state_in(),
                                    .cu_seqlens = c.cu_seqlens};
      AlignedFloats saved = saved_for(in);
      gated_delta_rule_forward(in, {.o = o.view(), .state = after.view(), .saved = saved});
      gated_delta_rule_forward(in, {.o = alone.view(), .state = after_alone.view(), .saved = {}});
      gated_delta_rule_backward(in, saved, d_o, d_after,
                                {.d_q = d_q.view(),
                                 .d_k = d_k.view(),
                                 .d_v = d_v.view(),
                                 .d_g = d_g.view(),
                                 .d_beta = d_beta.view(),
                                 .d_state = d_before.view()});
      break;
    }
    case Rule::ssd: {
      const SsdInputs in{.x = p.v.view(),
                         .dt = p.beta.view(),
                         .a = p.a,
                         .d = p.d,
                         .b = p.k.view(),
                         .c = p.q.view(),
                         .state = p.state_in(),
                         .cu_seqlens = c.cu_seqlens};
      AlignedFloats saved = saved_for(in);
      ssd_forward(in, {.o = o.view(), .state = after.view(), .saved = saved});
      ssd_forward(in, {.o = alone.view(), .state = after_alone.view(), .saved = {}});
      ssd_backward(in, saved, d_o, d_after,
                   {.d_x = d_v.view(),
                    .d_dt = d_beta.view(),
                    .d_b = d_k.view(),
                    .d_c = d_q.view(),
                    .d_a = d_a,
                    .d_d = d_d,
                    .d_state = d_before.view()});
      break;
    }
    case Rule::mesa: {
      const MesaInputs in{.q = p.q.view(),
                          .k = p.k.view(),
                          .v = p.v.view(),
                          .g = p.g.view(),
                          .beta = p.beta.view(),
                          .lambda = p.lambda,
                          .iterations = 200,
                          .state = p.state_in(),
                          .cu_seqlens = c.cu_seqlens};
      AlignedFloats saved = saved_for(in);
      mesa_forward(in, {.o = o.view(), .solution = solution.view(), .state = after.view(), .saved = saved});
      mesa_forward(in, {.o = alone.view(), .solution = {}, .state = after_alone.view(), .saved = {}});
      mesa_backward(in, {.solution = solution.view(), .states = saved}, d_o, d_after,
                    {.d_q = d_q.view(),
                     .d_k = d_k.view(),
                     .d_v = d_v.view(),
                     .d_g = d_g.view(),
                     .d_beta = d_beta.view(),
                     .d_lambda = d_lambda,
                     .d_state = d_before.view()});
      break;
    }
  }
  for (const Tensor* x : {&o, &after, &d_q, &d_k, &d_v, &d_g, &d_beta, &d_before}) EXPECT_TRUE(x->fences_intact());
  Values<float> values{{"o", o.values()},     {"state", after.values()}, {"d_q", d_q.values()},
                       {"d_k", d_k.values()}, {"d_v", d_v.values()},     {"d_state", d_before.values()}};
  if (c.rule != Rule::ssd) values["d_g"] = d_g.values();
  if (c.rule != Rule::linear) values["d_beta"] = d_beta.values();
  if (c.rule == Rule::mesa) values["d_lambda"] = d_lambda;
  if (c.rule == Rule::ssd) values.insert({{"d_a", d_a}, {"d_d", d_d}});
  EXPECT_TRUE(same_bits(alone.values(), values.at("o")) && same_bits(after_alone.values(), values.at("state"))) << c;
  return values;
}

// Adds rows of one head into a dense [B, T, H, D].
template <class Scalar>
void scatter(const Matrix<Scalar>& rows, int64_t first_row, int64_t row_stride, std::vector<Scalar>& values) {
  for (int64_t t = 0; t < rows.rows; ++t) {
    reference::add_scaled(&values[(first_row + t * row_stride) * rows.columns], Scalar(1), rows[t], rows.columns);
  }
}

template <class Scalar>
Values<Scalar> expected_recurrence(const RecurrenceProblem& p) {
  const RecurrenceCase& c = p.c;
  Values<Scalar> all;
  const auto sized = [&](const char* name, int64_t size) { all[name].resize(size); };
  const int64_t tokens = c.batch * c.time, states = c.sequences() * c.key_dim * c.heads * c.state_columns();
  sized("o", tokens * c.heads * c.value_dim);
  sized("d_v", tokens * c.heads * c.value_dim);
  sized("state", states);
  sized("d_state", states);
  sized("d_q", tokens * c.groups * c.key_dim);
  sized("d_k", tokens * c.groups * c.key_dim);
  if (c.rule != Rule::ssd) sized("d_g", tokens * c.heads);
  if (c.rule != Rule::linear) sized("d_beta", tokens * c.heads);
  if (c.rule == Rule::mesa) sized("d_lambda", c.heads * c.key_dim);
  if (c.rule == Rule::ssd) {
    sized("d_a", c.heads);
    sized("d_d", c.heads);
  }
  for (int64_t s = 0; s < c.sequences(); ++s) {
    const int64_t b = c.cu_seqlens.empty() ? s : 0, first = c.cu_seqlens.empty() ? 0 : c.cu_seqlens[s];
    const int64_t count = c.cu_seqlens.empty() ? c.time : c.cu_seqlens[s + 1] - first;
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t group = h / (c.heads / c.groups);
      const auto rows = [&](const Tensor& x, int64_t head) {
        return reference::load<Scalar>(x.view(), b, head, first, count);
      };
      const auto gate = [&](const Tensor& x) { return rows(x, h).data; };
      Matrix<Scalar> state = reference::load<Scalar>(p.state.view(), s, h, 0, c.key_dim);
      if (!c.state) std::fill(state.data.begin(), state.data.end(), Scalar(0));
      const Matrix<Scalar> d_after = reference::load<Scalar>(p.d_state.view(), s, h, 0, c.key_dim);
      const Matrix<Scalar> q = rows(p.q, group), k = rows(p.k, group), v = rows(p.v, h), d_o = rows(p.d_o, h);
      const auto put = [&](const char* name, const Matrix<Scalar>& x, int64_t heads, int64_t head) {
        scatter(x, (b * c.time + first) * heads + head, heads, all[name]);
      };
      const auto put_gate = [&](const char* name, const std::vector<Scalar>& x) {
        for (int64_t t = 0; t < count; ++t) all[name][(b * c.time + first + t) * c.heads + h] = x[t];
      };
      const auto put_all = [&](const auto& forward, const auto& d_q, const auto& d_k, const auto& d_v,
                               const auto& d_state) {
        put("o", forward.o, c.heads, h);
        put("d_q", d_q, c.groups, group);
        put("d_k", d_k, c.groups, group);
        put("d_v", d_v, c.heads, h);
        scatter(forward.states.back(), s * c.key_dim * c.heads + h, c.heads, all["state"]);
        scatter(d_state, s * c.key_dim * c.heads + h, c.heads, all["d_state"]);
      };
      if (c.rule == Rule::linear) {
        const reference::LinearHead<Scalar> head{q, k, v, gate(p.g), Scalar(p.scale()), state};
        const auto forward = reference::linear_attention_forward(head);
        const auto d = reference::linear_attention_backward(head, forward, d_o, d_after);
        put_all(forward, d.d_q, d.d_k, d.d_v, d.d_state);
        put_gate("d_g", d.d_g);
      } else if (c.rule == Rule::delta) {
        const reference::DeltaHead<Scalar> head{q, k, v, gate(p.g), gate(p.beta), Scalar(p.scale()), state};
        const auto forward = reference::gated_delta_rule_forward(head);
        const auto d = reference::gated_delta_rule_backward(head, forward, d_o, d_after);
        put_all(forward, d.d_q, d.d_k, d.d_v, d.d_state);
        put_gate("d_g", d.d_g);
        put_gate("d_beta", d.d_beta);
      } else if (c.rule == Rule::ssd) {
        const reference::SsdHead<Scalar> head{v, gate(p.beta), p.a[h], p.d[h], k, q, state};
        const auto forward = reference::ssd_forward(head);
        const auto d = reference::ssd_backward(head, forward, d_o, d_after);
        put_all(forward, d.d_c, d.d_b, d.d_x, d.d_state);
        put_gate("d_beta", d.d_dt);
        all["d_a"][h] += d.d_a;
        all["d_d"][h] += d.d_d;
      } else {
        const auto lambda = p.lambda.begin() + h * c.key_dim;
        const reference::MesaHead<Scalar> head{
            q, k, v, gate(p.g), gate(p.beta), std::vector<Scalar>(lambda, lambda + c.key_dim), state};
        const auto forward = reference::mesa_forward(head);
        const auto d = reference::mesa_backward(head, forward, d_o, d_after);
        put_all(forward, d.d_q, d.d_k, d.d_v, d.d_state);
        put_gate("d_g", d.d_g);
        put_gate("d_beta", d.d_beta);
        for (int64_t i = 0; i < c.key_dim; ++i) all["d_lambda"][h * c.key_dim + i] += d.d_lambda[i];
      }
    }
  }
  return all;
}

// Gradients by gates are differences of sums of q . d_q over a chunk and of <state, d_state>, so rounding depends on
// these terms. Returns their average sum over a chunk.
double gate_terms(const RecurrenceProblem& p, const std::vector<double>& d_q) {
  const std::vector<float> q = p.q.values();
  double sum = 0;
  for (size_t row = 0; row < q.size(); row += p.c.key_dim) {
    double product = 0;
    for (int64_t i = 0; i < p.c.key_dim; ++i) product += static_cast<double>(q[row + i]) * d_q[row + i];
    sum += std::abs(product);
  }
  const double rows = static_cast<double>(std::max<int64_t>(1, p.c.batch * p.c.time * p.c.groups));
  const double states = 2 * std::sqrt(static_cast<double>(p.c.key_dim * p.c.state_columns()));
  return states + sum / rows * static_cast<double>(std::min<int64_t>(recurrence::kChunk, p.c.time));
}

void expect_matches(const RecurrenceCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const RecurrenceProblem problem(c);
  const Values<float> actual = run(problem), plain = expected_recurrence<float>(problem);
  const Values<double> truth = expected_recurrence<double>(problem);
  const double terms = gate_terms(problem, truth.at("d_q"));
  for (const auto& [name, values] : truth) {
    const bool gate = name == "d_g" || name == "d_beta", shared = name == "d_a" || name == "d_d" || name == "d_lambda";
    const double tokens = std::sqrt(static_cast<double>(c.batch * c.time));
    const double magnitude = gate ? terms : shared ? terms * tokens : 1;
    EXPECT_TRUE(
        calibrated({.actual = actual.at(name), .plain = plain.at(name), .truth = values, .magnitude = magnitude}))
        << name;
  }
}

using Recurrences = OnIsa;
OVQ_ON_EVERY_ISA(Recurrences);

constexpr Rule kRules[] = {Rule::linear, Rule::delta, Rule::ssd, Rule::mesa};

TEST_P(Recurrences, ShortSequencesOfAnySize) {
  for (const Rule rule : kRules) {
    for (int64_t time : kShortTimes) {
      for (int64_t key_dim : {1, 8, 15, 16, 20}) {
        expect_matches({.rule = rule,
                        .time = time,
                        .key_dim = key_dim,
                        .value_dim = kDims[(time + key_dim) % 5],
                        .state = time % 2 == 0,
                        .seed = static_cast<uint64_t>(time * 1000 + key_dim)});
      }
    }
  }
}

TEST_P(Recurrences, PairsOfSizes) {
  constexpr int64_t kHeads[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 3}};
  constexpr int64_t kLongTimes[] = {31, 32, 33, 64, 65, 130};
  for (const Rule rule : kRules) {
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < 6; ++j) {
        if (rule == Rule::mesa && j == 5) continue;  // the plain solves take long
        const auto [batch, heads] = kHeads[(i + 2 * j) % 4];
        const bool shares = rule == Rule::linear || rule == Rule::ssd;
        expect_matches({.rule = rule,
                        .batch = batch,
                        .time = kLongTimes[i],
                        .groups = shares && i % 2 == 0 ? 1 : heads,
                        .heads = heads,
                        .key_dim = kDims[j],
                        .value_dim = kDims[(i + 2 * j) % 6],
                        .layout = kLayouts[(i + j) % 3],
                        .strong = (i + j) % 2 == 0,
                        .seed = static_cast<uint64_t>(i * 7 + j)});
      }
    }
  }
}

TEST_P(Recurrences, LargeHeads) {
  for (const Rule rule : {Rule::linear, Rule::delta, Rule::ssd}) {
    expect_matches({.rule = rule, .time = 150, .key_dim = 128, .value_dim = 112});
  }
  expect_matches({.rule = Rule::mesa, .time = 70, .key_dim = 64, .value_dim = 80});
}

TEST_P(Recurrences, Packed) {
  for (const Rule rule : kRules) {
    for (const bool state : {false, true}) {
      expect_matches({.rule = rule,
                      .time = 200,
                      .groups = 2,
                      .heads = 2,
                      .layout = Layout::padded,
                      .state = state,
                      .cu_seqlens = {0, 1, 1, 40, 169, 200}});
    }
  }
}

TEST_P(Recurrences, PermutingABatchPermutesTheOutputs) {
  for (const Rule rule : kRules) {
    const RecurrenceProblem problem({.rule = rule, .batch = 3, .time = 80, .groups = 2, .heads = 2});
    RecurrenceProblem swapped = problem;
    for (Tensor RecurrenceProblem::*member :
         {&RecurrenceProblem::q, &RecurrenceProblem::k, &RecurrenceProblem::v, &RecurrenceProblem::g,
          &RecurrenceProblem::beta, &RecurrenceProblem::d_o, &RecurrenceProblem::state, &RecurrenceProblem::d_state}) {
      const View<float> view = (swapped.*member).view();
      std::swap_ranges(view.row(0, 0, 0), view.row(1, 0, 0), view.row(2, 0, 0));
    }
    const Values<float> expected = run(problem), actual = run(swapped);
    for (const char* name : {"o", "state", "d_q", "d_k", "d_v", "d_state"}) {
      std::vector<float> permuted = expected.at(name);
      const auto third = static_cast<std::ptrdiff_t>(permuted.size() / 3);
      std::swap_ranges(permuted.begin(), permuted.begin() + third, permuted.begin() + 2 * third);
      EXPECT_TRUE(same_bits(actual.at(name), permuted)) << name;
    }
  }
}

void expect_same_bits_for_any_threads(const RecurrenceCase& c) {
  SCOPED_TRACE(c);
  const RecurrenceProblem problem(c);
  set_threads(1);
  const Values<float> expected = run(problem);
  for (const int threads : {2, 3, 7}) {
    set_threads(threads);
    const Values<float> actual = run(problem);
    for (const auto& [name, values] : expected) EXPECT_TRUE(same_bits(actual.at(name), values)) << name;
  }
  set_threads(0);
}

TEST_P(Recurrences, SameBitsForAnyNumberOfThreads) {
  for (const Rule rule : kRules) {
    expect_same_bits_for_any_threads(
        {.rule = rule, .batch = 3, .time = 150, .groups = 2, .heads = 2, .key_dim = 32, .value_dim = 32});
  }
}

// Of 6 heads three threads take two each, and one of them gets the last of one group and the first of the other; of 10
// heads they take 4, 4 and 2.
TEST_P(Recurrences, ThreadsMayShareTheHeadsOfAGroup) {
  for (const Rule rule : {Rule::linear, Rule::ssd}) {
    for (const int64_t value_dim : {20, 32}) {
      for (const int64_t heads : {6, 10}) {
        const RecurrenceCase c{
            .rule = rule, .time = 150, .groups = 2, .heads = heads, .key_dim = 32, .value_dim = value_dim};
        expect_same_bits_for_any_threads(c);
        expect_matches(c);
      }
    }
  }
}

// Results larger than the caches bypass them if their rows are aligned. Runs only on the two best instruction sets
// because it is slow.
TEST(LargeRecurrences, SameBitsPastTheCaches) {
  for (const Rule rule : {Rule::delta, Rule::ssd}) {
    RecurrenceCase c{.rule = rule, .time = 8193, .groups = 16, .heads = 16, .key_dim = 32, .value_dim = 32};
    const RecurrenceProblem dense(c);
    c.layout = Layout::padded;
    const RecurrenceProblem padded(c);
    ASSERT_TRUE(recurrence::Strided<float>(dense.v.view()).past_caches);
    ASSERT_FALSE(recurrence::Strided<float>(padded.v.view()).past_caches);
    std::vector<std::string> isas = available_isas();
    isas.resize(std::min<size_t>(isas.size(), 2));
    for (const std::string& isa : isas) {
      select_isa(isa);
      const Values<float> expected = run(padded);
      for (const auto& [name, values] : run(dense)) EXPECT_TRUE(same_bits(values, expected.at(name))) << name << isa;
    }
    select_isa("");
  }
}

TEST(RecurrenceTasks, HeadsAreComputedTogetherWhereNoThreadWaits) {
  using recurrence::heads_that_fit;
  using recurrence::heads_together;
  EXPECT_EQ(heads_together(6, 1, 8, 1, 2), 3);
  EXPECT_EQ(heads_together(6, 1, 8, 1, 1), 6);
  EXPECT_EQ(heads_together(6, 1, 2, 1, 1), 2);   // as many as fit
  EXPECT_EQ(heads_together(6, 1, 8, 3, 2), 3);   // three tasks of 6 would be two rounds
  EXPECT_EQ(heads_together(12, 1, 8, 1, 5), 3);  // six tasks of 2 too
  EXPECT_EQ(heads_together(2, 1, 8, 1, 7), 1);
  EXPECT_EQ(heads_together(6, 3, 8, 1, 7), 3);  // whole groups
  EXPECT_EQ(heads_together(6, 3, 1, 1, 1), 3);  // even if they do not fit
  EXPECT_EQ(heads_that_fit(128 * 144), 3);
  EXPECT_EQ(heads_that_fit(1 << 20), 1);
}

// More heads than fit at once.
TEST_P(Recurrences, ManyLargeHeads) {
  for (const Rule rule : {Rule::linear, Rule::delta}) {
    expect_matches({.rule = rule, .time = 70, .groups = 5, .heads = 5, .key_dim = 128, .value_dim = 128});
  }
}

// Processing a sequence in pieces with carried state equals the whole, and so does token by token.
TEST_P(Recurrences, PiecesCarryTheState) {
  for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{0, 1, 2, 40, 104, 104, 130}, {0, 64, 128, 130}}) {
    const RecurrenceProblem p({.rule = Rule::delta, .time = 130, .groups = 2, .heads = 2, .key_dim = 20});
    const Values<float> whole = run(p), plain = expected_recurrence<float>(p);
    const Values<double> truth = expected_recurrence<double>(p);
    const Tensor o({1, 130, 2, 16});
    const Tensor state = p.state;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const int64_t first = pieces[i], count = pieces[i + 1] - first;
      gated_delta_rule_forward({.q = p.q.slice(first, count),
                                .k = p.k.slice(first, count),
                                .v = p.v.slice(first, count),
                                .g = p.g.slice(first, count),
                                .beta = p.beta.slice(first, count),
                                .scale = p.scale(),
                                .state = state.view(),
                                .cu_seqlens = {}},
                               {.o = o.slice(first, count), .state = state.view(), .saved = {}});
    }
    EXPECT_TRUE(calibrated({.actual = o.values(), .plain = plain.at("o"), .truth = truth.at("o"), .magnitude = 1}));
    EXPECT_TRUE(
        calibrated({.actual = state.values(), .plain = plain.at("state"), .truth = truth.at("state"), .magnitude = 1}));
    if (pieces[1] == 64) {  // the same chunks
      EXPECT_TRUE(same_bits(o.values(), whole.at("o")));
    }
  }
}

TEST_P(Recurrences, TheFutureDoesNotCount) {
  for (const Rule rule : kRules) {
    const RecurrenceProblem problem({.rule = rule, .time = 150, .groups = 2, .heads = 2});
    const Values<float> expected = run(problem);
    for (const int64_t from : {1, 15, 40, 64, 149}) {
      RecurrenceProblem changed = problem;
      for (Tensor* tensor : {&changed.q, &changed.k, &changed.v, &changed.g, &changed.beta}) {
        const View<float> x = tensor->view();
        for (int64_t t = from; t < 150; ++t) {
          for (int64_t i = 0; i < x.heads * x.dim; ++i) x.row(0, t, 0)[i] *= 0.5f;
        }
      }
      const Values<float> actual = run(changed);
      const size_t past = from * 2 * 16;
      EXPECT_TRUE(same_bits(std::span(actual.at("o")).first(past), std::span(expected.at("o")).first(past)))
          << "from " << from;
    }
  }
}

TEST(RecurrencesInput, BadSizesAreNamed) {
  const RecurrenceProblem p({.rule = Rule::delta, .batch = 2, .time = 8, .groups = 2, .heads = 2});
  const Tensor o({2, 8, 2, 16});
  const auto call = [&](const auto& change) {
    GatedDeltaRuleInputs in{.q = p.q.view(),
                            .k = p.k.view(),
                            .v = p.v.view(),
                            .g = p.g.view(),
                            .beta = p.beta.view(),
                            .state = p.state.view(),
                            .cu_seqlens = {}};
    GatedDeltaRuleOutputs out{.o = o.view(), .state = {}, .saved = {}};
    change(in, out);
    gated_delta_rule_forward(in, out);
  };
  using Bad = std::invalid_argument;
  EXPECT_TRUE(throws_naming<Bad>("k", [&] { call([](auto& in, auto&) { in.k.dim = 15; }); }));
  EXPECT_TRUE(throws_naming<Bad>("v", [&] { call([](auto& in, auto&) { in.v.time = 7; }); }));
  EXPECT_TRUE(throws_naming<Bad>("g", [&] { call([](auto& in, auto&) { in.g = {}; }); }));
  EXPECT_TRUE(throws_naming<Bad>("beta", [&] { call([](auto& in, auto&) { in.beta.heads = 1; }); }));
  EXPECT_TRUE(throws_naming<Bad>("state", [&] { call([](auto& in, auto&) { in.state.batch = 1; }); }));
  EXPECT_TRUE(throws_naming<Bad>("o", [&] { call([](auto&, auto& out) { out.o.dim = 3; }); }));
  std::vector<float> few(3);
  EXPECT_TRUE(throws_naming<Bad>("saved", [&] { call([&](auto&, auto& out) { out.saved = few; }); }));
}

}  // namespace
}  // namespace ovq::kernels::test
