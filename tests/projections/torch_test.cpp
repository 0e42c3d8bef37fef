#include "ovq/ops/projections/torch.h"

#include <numeric>

#include "ovq/ops/rotary/torch.h"
#include "tests/ops/formula_checks.h"

namespace ovq::ops::test {
namespace {

using kernels::Shift;

// x one token later, its own first row at the start of each sequence; or behind `before` [B, 1, C].
Tensor shifted(const Tensor& x, const ProjectionsInputs& in, const Tensor& before) {
  std::vector<int64_t> offsets = {0, x.size(1)};
  if (in.cu_seqlens) {
    const Tensor given = in.cu_seqlens->to(at::kLong);
    offsets.assign(given.data_ptr<int64_t>(), given.data_ptr<int64_t>() + given.numel());
  }
  std::vector<Tensor> parts;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const Tensor part = x.slice(1, offsets[i], offsets[i + 1]);
    if (part.size(1) == 0) continue;
    parts.push_back(before.defined() ? before : part.slice(1, 0, 1));
    parts.push_back(part.slice(1, 0, -1));
  }
  return parts.empty() ? x : at::cat(parts, 1);
}

Tensor convolved(const Tensor& x, const ProjectedPart& part, const ProjectionsInputs& in, const Tensor& before) {
  const int64_t width = part.taps.size(1);
  const auto one = [&](const Tensor& sequence) {
    const Tensor zeros = at::zeros({x.size(0), width - 1, x.size(2)}, x.options());
    const Tensor all = at::cat({before.defined() ? before : zeros, sequence}, 1);
    Tensor y = at::zeros_like(sequence);
    for (int64_t j = 0; j < width; ++j) y = y + all.narrow(1, j, sequence.size(1)) * part.taps.select(1, j);
    return part.taps_bias.defined() ? y + part.taps_bias : y;
  };
  if (!in.cu_seqlens) return one(x);
  const Tensor offsets = in.cu_seqlens->to(at::kLong);
  std::vector<Tensor> parts;
  for (int64_t i = 0; i + 1 < offsets.numel(); ++i) {
    parts.push_back(one(x.slice(1, offsets[i].item<int64_t>(), offsets[i + 1].item<int64_t>())));
  }
  return at::cat(parts, 1);
}

// One ATen call after the other. carried: null without a state.
std::vector<Tensor> formula(const ProjectionsInputs& in, std::vector<CarriedRows>* carried = nullptr) {
  std::vector<Tensor> products, outputs;
  for (size_t i = 0; i < in.weights.size(); ++i) {
    products.push_back(at::linear(in.x, in.weights[i], in.biases.empty() ? Tensor() : in.biases[i]));
  }
  const Tensor all = at::cat(products, -1);
  int64_t first = 0;
  for (size_t i = 0; i < in.parts.size(); ++i) {
    const ProjectedPart& part = in.parts[i];
    CarriedRows before, after;
    if (carried != nullptr) before = (*carried)[i];
    Tensor y = all.narrow(-1, first, part.channels);
    first += part.channels;
    if (part.taps.defined()) {
      const int64_t kept = part.taps.size(1) - 1;
      const Tensor zeros = at::zeros({y.size(0), kept, y.size(2)}, y.options());
      const Tensor inputs = at::cat({before.inputs.defined() ? before.inputs : zeros, y}, 1);
      after.inputs = inputs.narrow(1, inputs.size(1) - kept, kept);
      y = convolved(y, part, in, before.inputs);
    }
    if (part.silu) y = y / (1 + (-y).exp());
    if (part.unit_eps) {
      const Tensor heads = y.unflatten(-1, {part.channels / part.head_dim, part.head_dim});
      y = (heads / (heads.square().sum(-1, true) + *part.unit_eps).sqrt()).flatten(-2);
    }
    if (part.shift != Shift::none) {
      after.row = y.size(1) > 0 ? y.slice(1, -1) : before.row;
      const Tensor late = shifted(y, in, before.row);
      y = part.shift == Shift::previous ? late : part.share * late + (1 - part.share) * y;
    }
    if (part.angles.defined()) {
      const int64_t half = part.head_dim / 2;
      const Tensor heads = y.unflatten(-1, {part.channels / part.head_dim, part.head_dim});
      const Tensor angles = part.angles.to(y.scalar_type()).unsqueeze(1);
      const Tensor a = heads.narrow(-1, 0, half), b = heads.narrow(-1, half, half);
      const Tensor cosine = angles.narrow(-1, 0, half), sine = angles.narrow(-1, half, half);
      y = at::cat({a * cosine - b * sine, a * sine + b * cosine}, -1).flatten(-2);
    }
    outputs.push_back(y);
    if (carried != nullptr) (*carried)[i] = after;
  }
  return outputs;
}

// Queries, keys and values of attention, with all options.
struct HeadsCase {
  int64_t batch = 2, time = 9, width = 12, heads = 2, head_dim = 8, taps = 4;
  Tensor cu_seqlens = {};
};

// in: x, three weights, two taps, alpha
ProjectionsInputs attention_inputs(const HeadsCase& c, const std::vector<Tensor>& in) {
  const int64_t channels = c.heads * c.head_dim;
  const Tensor alpha = in[6].to(at::promote_types(in[6].scalar_type(), at::kFloat));
  const Tensor angles =
      rotary_table(at::empty({1, in[0].size(1), 1, c.head_dim}),
                   {.cu_seqlens = c.cu_seqlens.defined() ? c10::optional<Tensor>(c.cu_seqlens) : c10::nullopt});
  const ProjectedPart q{
      .channels = channels, .head_dim = c.head_dim, .taps = in[4], .unit_eps = 1e-12, .angles = angles};
  ProjectedPart k = q;
  k.taps = in[5];
  k.shift = Shift::previous;
  const ProjectedPart v{
      .channels = channels, .head_dim = c.head_dim, .shift = Shift::mean, .share = at::sigmoid(alpha)};
  ProjectionsInputs inputs{.x = in[0], .weights = {in[1], in[2], in[3]}, .parts = {q, k, v}};
  if (c.cu_seqlens.defined()) inputs.cu_seqlens = c.cu_seqlens;
  return inputs;
}

std::vector<Tensor> random_inputs(const HeadsCase& c) {
  const int64_t channels = c.heads * c.head_dim;
  std::vector<Tensor> in = {at::randn({c.batch, c.time, c.width}, kDouble)};
  for (int i = 0; i < 3; ++i) in.push_back(at::randn({channels, c.width}, kDouble));
  for (int i = 0; i < 2; ++i) in.push_back(at::randn({channels, c.taps}, kDouble));
  in.push_back(at::randn({}, kDouble));
  return in;
}

void expect_attention_inputs(const HeadsCase& c) {
  expect_as_good_as_formula([&](const std::vector<Tensor>& in) { return projections(attention_inputs(c, in)); },
                            [&](const std::vector<Tensor>& in) { return formula(attention_inputs(c, in)); },
                            random_inputs(c));
}

TEST(Projections, InputsOfAttention) {
  torch::manual_seed(1);
  for (const int64_t time : {1, 2, 3, 4, 5, 64, 65, 130}) expect_attention_inputs({.time = time});
  for (const int64_t taps : {1, 2, 3, 5}) expect_attention_inputs({.taps = taps});
  for (const int64_t head_dim : {2, 6, 14, 16, 34, 64, 130}) expect_attention_inputs({.head_dim = head_dim});
  for (const int64_t heads : {1, 3, 16}) expect_attention_inputs({.heads = heads, .head_dim = 16});
  expect_attention_inputs({.batch = 5, .width = 1});
  expect_attention_inputs({.batch = 1, .time = 11, .cu_seqlens = at::tensor({0, 1, 1, 7, 11})});
}

// As in the recurrent layers: silu after the convolution, biases, parts of one matrix.
TEST(Projections, InputsOfRecurrences) {
  torch::manual_seed(2);
  const auto inputs = [](const std::vector<Tensor>& in) {
    const ProjectedPart keys{
        .channels = 12, .head_dim = 6, .taps = in[4], .taps_bias = in[5], .silu = true, .unit_eps = 1e-6};
    const ProjectedPart values{.channels = 150, .taps = in[6], .silu = true}, plain{.channels = 3};
    return ProjectionsInputs{
        .x = in[0], .weights = {in[1], in[2]}, .biases = {Tensor(), in[3]}, .parts = {keys, values, plain, plain}};
  };
  for (const int64_t time : {1, 3, 70}) {
    expect_as_good_as_formula(
        [&](const std::vector<Tensor>& in) { return projections(inputs(in)); },
        [&](const std::vector<Tensor>& in) { return formula(inputs(in)); },
        {at::randn({3, time, 10}, kDouble), at::randn({163, 10}, kDouble), at::randn({5, 10}, kDouble),
         at::randn({5}, kDouble), at::randn({12, 4}, kDouble), at::randn({12}, kDouble), at::randn({150, 4}, kDouble)});
  }
}

// x in pieces, each behind the rows that the one before carried on, and those rows as outputs and inputs.
std::vector<Tensor> in_pieces(const HeadsCase& c, const std::vector<Tensor>& in, const std::vector<int64_t>& pieces,
                              bool by_formula) {
  std::vector<CarriedRows> carried = {
      {.inputs = in[7], .row = {}}, {.inputs = in[8], .row = in[9]}, {.inputs = {}, .row = in[10]}};
  std::vector<Tensor> results;
  for (const Tensor& piece : in[0].split_with_sizes(pieces, 1)) {
    std::vector<Tensor> own = in;
    own[0] = piece;
    const ProjectionsInputs inputs = attention_inputs(c, own);
    const std::vector<Tensor> y = by_formula ? formula(inputs, &carried) : projections(inputs, carried);
    results.insert(results.end(), y.begin(), y.end());
  }
  for (const Tensor& rows : {carried[0].inputs, carried[1].inputs, carried[1].row, carried[2].row})
    results.push_back(rows);
  return results;
}

// Gradients by the rows before x too, and through those carried from piece to piece.
TEST(Projections, CarryRowsFromPieceToPiece) {
  torch::manual_seed(5);
  for (const auto& [taps, pieces] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{{4, {70}},
                                                                                          {4, {1}},
                                                                                          {4, {2, 1, 67}},
                                                                                          {4, {1, 1, 1, 1}},
                                                                                          {4, {3, 0, 5}},
                                                                                          {2, {1, 4}},
                                                                                          {5, {2, 2, 2}},
                                                                                          {1, {3, 4}}}) {
    HeadsCase c{.taps = taps};
    c.time = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
    const int64_t channels = c.heads * c.head_dim;
    std::vector<Tensor> in = random_inputs(c);
    for (int i = 0; i < 2; ++i) in.push_back(at::randn({c.batch, taps - 1, channels}, kDouble));
    for (int i = 0; i < 2; ++i) in.push_back(at::randn({c.batch, 1, channels}, kDouble));
    SCOPED_TRACE(testing::Message() << taps << " taps, " << pieces.size() << " pieces");
    expect_as_good_as_formula([&](const std::vector<Tensor>& x) { return in_pieces(c, x, pieces, false); },
                              [&](const std::vector<Tensor>& x) { return in_pieces(c, x, pieces, true); }, in);
  }
}

// A fresh state is none, and pieces are one pass, bit for bit where the products are.
TEST(Projections, PiecesAreOnePass) {
  torch::manual_seed(6);
  const torch::NoGradGuard no_grad;
  HeadsCase c{.time = 20};
  std::vector<Tensor> in;
  for (const Tensor& x : random_inputs(c)) in.push_back(x.to(at::kFloat));
  ProjectionsInputs whole = attention_inputs(c, in);
  for (ProjectedPart& part : whole.parts) part.angles = Tensor();
  const std::vector<Tensor> expected = projections(whole);
  for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{{20}, {1, 0, 2, 17}, {0, 10, 10}}) {
    std::vector<CarriedRows> carried(3);
    std::vector<std::vector<Tensor>> outputs(3);
    for (const Tensor& piece : in[0].split_with_sizes(pieces, 1)) {
      ProjectionsInputs part = whole;
      part.x = piece;
      const std::vector<Tensor> y = projections(part, carried);
      for (size_t i = 0; i < 3; ++i) outputs[i].push_back(y[i]);
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(at::cat(outputs[i], 1), expected[i], 1e-6)) << "part " << i;
    EXPECT_EQ(carried[0].inputs.sizes(), at::IntArrayRef({2, 3, 16}));
    EXPECT_FALSE(carried[0].row.defined());
    EXPECT_EQ(carried[2].row.sizes(), at::IntArrayRef({2, 1, 16}));
    EXPECT_FALSE(carried[2].inputs.defined());
  }
  std::vector<CarriedRows> fresh(3);
  whole.x = in[0].narrow(1, 0, 0);
  EXPECT_EQ(projections(whole, fresh)[0].sizes(), at::IntArrayRef({2, 0, 16}));
  EXPECT_TRUE(close(fresh[0].inputs, at::zeros({2, 3, 16}), 0));
  EXPECT_FALSE(fresh[1].row.defined());
}

TEST(Projections, ConvertHalves) {
  torch::manual_seed(7);
  std::vector<Tensor> in;
  for (const Tensor& x : random_inputs({})) in.push_back(x.to(at::kFloat));
  const OpCall call = [](const std::vector<Tensor>& x) { return projections(attention_inputs({}, x)); };
  expect_conversions("projections", call, in);
  expect_no_second_derivative("projections", call, in);
}

TEST(Projections, NoTokens) {
  for (const auto& [batch, time] : {std::pair{2, 0}, {0, 5}}) {
    const std::vector<Tensor> in = random_inputs({.batch = batch, .time = time});
    const auto results = outputs_and_gradients(
        [](const std::vector<Tensor>& x) { return projections(attention_inputs({}, x)); }, in, at::kFloat);
    EXPECT_EQ(results[0].sizes(), at::IntArrayRef({batch, time, 16}));
    for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(close(results[i + 3], at::zeros_like(in[i]), 0)) << i;
  }
}

// A part that nothing depends on leaves its weight without a gradient.
TEST(Projections, UnusedParts) {
  torch::manual_seed(8);
  const Tensor x = at::randn({2, 5, 3}), used = at::randn({4, 3}).requires_grad_(),
               unused = at::randn({2, 3}).requires_grad_();
  const auto y = projections({.x = x, .weights = {used, unused}, .parts = {{.channels = 4}, {.channels = 2}}});
  y[0].sum().backward();
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_TRUE(close(used.grad(), x.flatten(0, 1).sum(0).expand({4, 3}), 1e-5));
}

TEST(Projections, StridedInput) {
  torch::manual_seed(3);
  const Tensor x = at::randn({6, 2, 5}).transpose(0, 1), weight = at::randn({4, 5});
  const auto y = projections({.x = x, .weights = {weight}, .parts = {{.channels = 4}}});
  EXPECT_TRUE(close(y[0], at::linear(x, weight), 1e-6));
}

TEST(Projections, BadInput) {
  const Tensor x = at::ones({1, 2, 3}), weight = at::ones({4, 3});
  const auto said = [&](const ProjectedPart& part) {
    return message_of([&] { projections({.x = x, .weights = {weight}, .parts = {part}}); });
  };
  EXPECT_EQ(said({.channels = 5}), "[projections] the weights have 4 rows; must be the parts' 5 channels");
  EXPECT_EQ(said({.channels = 4, .head_dim = 3}), "[projections] head_dim is 3; must divide the part's 4 channels");
  EXPECT_EQ(said({.channels = 4, .shift = Shift::mean}),
            "[projections] share must be given with the shift to a mean, and only then");
  const auto carried_said = [&](const CarriedRows& rows, const c10::optional<Tensor>& cu_seqlens) {
    std::vector<CarriedRows> carried = {rows};
    return message_of([&] {
      projections(
          {.x = x, .weights = {weight}, .parts = {{.channels = 4, .taps = at::ones({4, 3})}}, .cu_seqlens = cu_seqlens},
          carried);
    });
  };
  EXPECT_EQ(carried_said({.inputs = at::ones({1, 3, 4}), .row = {}}, {}),
            "[projections] carried inputs has shape [1, 3, 4]; must be [1, 2, 4]");
  EXPECT_EQ(carried_said({}, at::tensor({0, 2})),
            "[projections] carried rows are given with cu_seqlens; must be one or the other");
  EXPECT_EQ(said({.channels = 4, .taps = at::ones({3, 2})}), "[projections] taps must be [4, width]");
}

}  // namespace
}  // namespace ovq::ops::test
