#include "ovq/ops/projections/torch.h"

#include "ovq/ops/rotary/torch.h"
#include "tests/ops/fused_checks.h"

namespace ovq::ops::test {
namespace {

using kernels::Shift;

// Queries, keys and values of attention, with all options.
struct HeadsCase {
  int64_t batch = 2, time = 9, width = 12, heads = 2, head_dim = 8, taps = 4;
  Tensor cu_seqlens = {};
};

void expect_attention_inputs(const HeadsCase& c) {
  const int64_t channels = c.heads * c.head_dim;
  const auto call = [&](const std::vector<Tensor>& in) {
    const Tensor angles =
        rotary_table(at::empty({1, c.time, 1, c.head_dim}, in[0].options()),
                     {.cu_seqlens = c.cu_seqlens.defined() ? c10::optional<Tensor>(c.cu_seqlens) : c10::nullopt});
    const ProjectedPart q{
        .channels = channels, .head_dim = c.head_dim, .taps = in[4], .unit_eps = 1e-12, .angles = angles};
    ProjectedPart k = q;
    k.taps = in[5];
    k.shift = Shift::previous;
    const ProjectedPart v{
        .channels = channels, .head_dim = c.head_dim, .shift = Shift::mean, .share = at::sigmoid(in[6])};
    ProjectionsInputs inputs{.x = in[0], .weights = {in[1], in[2], in[3]}, .parts = {q, k, v}};
    if (c.cu_seqlens.defined()) inputs.cu_seqlens = c.cu_seqlens;
    return projections(inputs);
  };
  std::vector<Tensor> in = {at::randn({c.batch, c.time, c.width}, kDouble)};
  for (int i = 0; i < 3; ++i) in.push_back(at::randn({channels, c.width}, kDouble));
  for (int i = 0; i < 2; ++i) in.push_back(at::randn({channels, c.taps}, kDouble));
  in.push_back(at::randn({}, kDouble));
  expect_as_good_as_composed(call, in);
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
  const auto call = [](const std::vector<Tensor>& in) {
    const ProjectedPart keys{
        .channels = 12, .head_dim = 6, .taps = in[4], .taps_bias = in[5], .silu = true, .unit_eps = 1e-6};
    const ProjectedPart values{.channels = 150, .taps = in[6], .silu = true}, plain{.channels = 3};
    return projections(
        {.x = in[0], .weights = {in[1], in[2]}, .biases = {Tensor(), in[3]}, .parts = {keys, values, plain, plain}});
  };
  for (const int64_t time : {1, 3, 70}) {
    expect_as_good_as_composed(call, {at::randn({3, time, 10}, kDouble), at::randn({163, 10}, kDouble),
                                      at::randn({5, 10}, kDouble), at::randn({5}, kDouble), at::randn({12, 4}, kDouble),
                                      at::randn({12}, kDouble), at::randn({150, 4}, kDouble)});
  }
}

TEST(Projections, StridedInput) {
  torch::manual_seed(3);
  const Tensor x = at::randn({6, 2, 5}).transpose(0, 1), weight = at::randn({4, 5});
  const auto y = projections({.x = x, .weights = {weight}, .parts = {{.channels = 4}}});
  EXPECT_TRUE(close(y[0], at::linear(x, weight), 1e-6));
}

TEST(Projections, Gradients) {
  torch::manual_seed(4);
  Tensor x = at::randn({2, 5, 3}, kDouble), weight = at::randn({8, 3}, kDouble), taps = at::randn({4, 3}, kDouble);
  Tensor share = at::scalar_tensor(0.3, kDouble);
  expect_gradients({{"x", x}, {"weight", weight}, {"taps", taps}, {"share", share}}, [&] {
    return projections({.x = x,
                        .weights = {weight},
                        .parts = {{.channels = 4, .head_dim = 2, .taps = taps, .silu = true, .unit_eps = 1e-2},
                                  {.channels = 4, .shift = Shift::mean, .share = share}}});
  });
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
  EXPECT_EQ(said({.channels = 4, .taps = at::ones({3, 2})}), "[projections] taps must be [4, width]");
}

}  // namespace
}  // namespace ovq::ops::test
