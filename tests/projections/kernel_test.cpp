// The steps from a projection to queries, keys and values, against the plain loops. tests/projections/torch_test.cpp
// has the gradients.
#include <gtest/gtest.h>

#include <vector>

#include "ovq/core/parallel.h"
#include "ovq/ops/projections/projections.h"
#include "ovq/ops/projections/reference.h"
#include "tests/core/matrices.h"

namespace ovq::kernels::test {
namespace {

struct StepsCase {
  int64_t batch = 2, time = 9, heads = 3, head_dim = 8, taps = 4;
  bool taps_bias = true, silu = true, unit = true, rotates = true, before = true;
  Shift shift = Shift::mean;
};

std::ostream& operator<<(std::ostream& out, const StepsCase& c) {
  return out << "batch " << c.batch << ", time " << c.time << ", heads " << c.heads << ", head_dim " << c.head_dim
             << ", taps " << c.taps << ", bias " << c.taps_bias << ", silu " << c.silu << ", unit " << c.unit
             << ", rotates " << c.rotates << ", before " << c.before << ", shift " << static_cast<int>(c.shift);
}

// A part that is y as it is, then the part under test.
struct StepsProblem {
  explicit StepsProblem(const StepsCase& c) : c(c), channels(c.heads * c.head_dim) {
    Random random(static_cast<uint64_t>(c.time * 1000 + channels));
    const auto filled = [&](Shape shape) { return random_tensor(shape, Layout::dense, random); };
    y = filled({c.batch, c.time, 1, kPlain + channels});
    taps = filled({1, channels, 1, c.taps});
    bias = filled({1, 1, 1, channels});
    angles = filled({1, c.time, 1, c.head_dim});
    inputs_before = filled({c.batch, std::max<int64_t>(0, c.taps - 1), 1, channels});
    row_before = filled({c.batch, 1, 1, channels});
  }

  ProjectionPart part() const {
    ProjectionPart part{.channels = channels, .head_dim = c.head_dim, .silu = c.silu, .shift = c.shift, .share = 0.3f};
    if (c.taps > 0) part.taps = span(taps);
    if (c.taps > 0 && c.taps_bias) part.taps_bias = span(bias);
    if (c.unit) part.unit_eps = 1e-3f;
    if (c.rotates) part.angles = span(angles);
    if (c.before && c.taps > 0) part.inputs_before = span(inputs_before);
    if (c.before && c.shift != Shift::none) part.row_before = span(row_before);
    return part;
  }

  template <class Scalar>
  reference::ProjectedRows<Scalar> expected(int64_t b) const {
    reference::Matrix<Scalar> own(c.time, channels);
    for (int64_t t = 0; t < c.time; ++t) std::copy_n(y.row(b, t, 0) + kPlain, channels, own[t]);
    reference::ProjectionSteps<Scalar> steps{.silu = c.silu, .head_dim = c.head_dim, .shift = c.shift, .share = 0.3f};
    if (c.taps > 0) steps.taps = matrix<Scalar>(taps);
    if (c.taps > 0 && c.taps_bias) steps.taps_bias = matrix<Scalar>(bias).data;
    if (c.unit) steps.unit_eps = 1e-3f;
    if (c.rotates) steps.angles = matrix<Scalar>(angles);
    if (c.before && c.taps > 0) steps.inputs_before = matrix<Scalar>(inputs_before, b);
    if (c.before && c.shift != Shift::none) steps.row_before = matrix<Scalar>(row_before, b);
    return reference::projected_rows(own, steps);
  }

  static constexpr int64_t kPlain = 5;
  StepsCase c;
  int64_t channels;
  Tensor y, taps, bias, angles, inputs_before, row_before;
};

void expect_steps(const StepsCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const StepsProblem p(c);
  const Tensor plain_part({c.batch, c.time, 1, StepsProblem::kPlain}), o({c.batch, c.time, 1, p.channels});
  const Tensor inputs_after({c.batch, std::max<int64_t>(0, c.taps - 1), 1, p.channels}),
      row_after({c.batch, 1, 1, p.channels});
  const std::vector<ProjectionPart> parts = {{.channels = StepsProblem::kPlain}, p.part()};
  const bool has_row = c.shift != Shift::none && (c.time > 0 || c.before);
  const std::vector<ProjectionOutputs> outputs = {{.o = span(plain_part), .inputs_after = {}, .row_after = {}},
                                                  {.o = span(o),
                                                   .inputs_after = c.taps > 0 ? span(inputs_after) : std::span<float>(),
                                                   .row_after = has_row ? span(row_after) : std::span<float>()}};
  projection_rows({.y = span(p.y), .batch = c.batch, .time = c.time, .parts = parts, .cu_seqlens = {}}, outputs);
  for (const Tensor* x : {&plain_part, &o, &inputs_after, &row_after}) EXPECT_TRUE(x->fences_intact());
  for (int64_t b = 0; b < c.batch; ++b) {
    const auto plain = p.expected<float>(b);
    const auto truth = p.expected<double>(b);
    const auto expect = [&](const Tensor& actual, const auto& float_rows, const auto& double_rows) {
      const auto values = reference::load<float>(actual.view(), b, 0, 0, actual.view().time).data;
      EXPECT_TRUE(calibrated({.actual = values, .plain = float_rows.data, .truth = double_rows.data, .magnitude = 1}));
    };
    expect(o, plain.o, truth.o);
    if (c.taps > 0) expect(inputs_after, plain.inputs_after, truth.inputs_after);
    if (has_row) expect(row_after, plain.row_after, truth.row_after);
    for (int64_t t = 0; t < c.time; ++t) {
      for (int64_t i = 0; i < StepsProblem::kPlain; ++i) {
        EXPECT_EQ(plain_part.row(b, t, 0)[i], p.y.row(b, t, 0)[i]);
      }
    }
  }
}

using ProjectionKernels = OnIsa;
OVQ_ON_EVERY_ISA(ProjectionKernels);

TEST_P(ProjectionKernels, AnySize) {
  for (const int64_t time : {0, 1, 2, 3, 4, 5, 31, 70}) {
    for (const bool before : {false, true}) {
      for (const int64_t taps : {0, 1, 2, 4, 5}) expect_steps({.time = time, .taps = taps, .before = before});
    }
  }
  for (const int64_t head_dim : {2, 14, 16, 34, 64, 130}) expect_steps({.head_dim = head_dim});
}

TEST_P(ProjectionKernels, AnySteps) {
  for (const Shift shift : {Shift::none, Shift::previous, Shift::mean}) {
    for (int bits = 0; bits < 32; ++bits) {
      const auto set = [&](int bit) { return (bits >> bit & 1) != 0; };
      expect_steps({.time = 6,
                    .taps_bias = set(0),
                    .silu = set(1),
                    .unit = set(2),
                    .rotates = set(3),
                    .before = set(4),
                    .shift = shift});
    }
  }
}

TEST_P(ProjectionKernels, SameBitsForAnyNumberOfThreads) {
  const StepsProblem p({.batch = 3, .time = 400, .heads = 20, .head_dim = 16});
  const std::vector<ProjectionPart> parts = {{.channels = StepsProblem::kPlain}, p.part()};
  const auto run = [&] {
    const Tensor plain({3, 400, 1, StepsProblem::kPlain}), o({3, 400, 1, p.channels});
    const std::vector<ProjectionOutputs> outputs = {{.o = span(plain), .inputs_after = {}, .row_after = {}},
                                                    {.o = span(o), .inputs_after = {}, .row_after = {}}};
    projection_rows({.y = span(p.y), .batch = 3, .time = 400, .parts = parts, .cu_seqlens = {}}, outputs);
    return o.values();
  };
  set_threads(1);
  const std::vector<float> one = run();
  set_threads(3);
  EXPECT_TRUE(same_bits(run(), one));
  set_threads(0);
}

TEST(ProjectionErrors, NameTheArgument) {
  const StepsProblem p({.batch = 1, .time = 4});
  std::vector<float> o(4 * 24), short_o(5);
  const auto said = [&](ProjectionPart part, std::span<float> to, std::vector<int64_t> cu_seqlens = {}) {
    return [&, part, to, cu_seqlens] {
      const std::vector<ProjectionPart> parts = {part};
      const std::vector<ProjectionOutputs> outputs = {{.o = to, .inputs_after = {}, .row_after = {}}};
      projection_rows({.y = o, .batch = 1, .time = 4, .parts = parts, .cu_seqlens = cu_seqlens}, outputs);
    };
  };
  const auto named = [](const std::string& name, const auto& call) {
    return throws_naming<std::invalid_argument>(name, call);
  };
  EXPECT_NO_THROW(said(p.part(), o)());
  EXPECT_TRUE(named("o", said(p.part(), short_o)));
  EXPECT_TRUE(named("cu_seqlens", said(p.part(), o, {0, 4})));
  ProjectionPart part = p.part();
  part.head_dim = 5;
  EXPECT_TRUE(named("head_dim", said(part, o)));
  part = p.part();
  part.taps = part.taps.first(7);
  EXPECT_TRUE(named("taps", said(part, o)));
  part = p.part();
  part.inputs_before = part.inputs_before.first(7);
  EXPECT_TRUE(named("inputs_before", said(part, o)));
  part = p.part();
  part.shift = Shift::none;
  EXPECT_TRUE(named("row_before", said(part, o)));
  part = p.part();
  part.channels = 23;
  EXPECT_TRUE(named("head_dim", said(part, o)));
}

}  // namespace
}  // namespace ovq::kernels::test
