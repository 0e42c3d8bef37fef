// Gradients summed over ranks equal those of all rows together.
#include "ovq/distributed/gradient_buckets.h"

#include "tests/distributed/ranks.h"

namespace ovq::distributed::test {
namespace {

constexpr int64_t kRows = 6, kWidth = 8, kLayers = 4;

// The same on every rank.
std::vector<at::Tensor> make_weights() {
  auto generator = at::detail::createCPUGenerator(1);
  std::vector<at::Tensor> weights;
  for (int64_t i = 0; i < kLayers; ++i)
    weights.push_back(at::randn({kWidth, kWidth}, generator).div_(3).requires_grad_());
  weights.push_back(at::zeros({3}).requires_grad_());  // never used
  weights.push_back(at::zeros({1}).requires_grad_());  // used by one row
  return weights;
}

at::Tensor loss_of(const std::vector<at::Tensor>& weights, const at::Tensor& rows, int64_t first_row) {
  at::Tensor x = rows;
  for (int64_t i = 0; i < kLayers; ++i) x = at::tanh(at::matmul(x, weights[static_cast<size_t>(i)]));
  at::Tensor loss = x.square().sum();
  if (first_row == 0) loss = loss + 5 * weights.back().sum();
  return loss;
}

std::vector<at::Tensor> expected_gradients(const at::Tensor& rows) {
  const std::vector<at::Tensor> weights = make_weights();
  loss_of(weights, rows, 0).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : weights) gradients.push_back(weight.grad());
  return gradients;
}

class Buckets : public testing::TestWithParam<int64_t> {};

TEST_P(Buckets, AddUpOverRanksAndBackwards) {
  const int64_t ranks = 3;
  const at::Tensor rows = at::randn({kRows, kWidth}, at::detail::createCPUGenerator(2));
  const std::vector<at::Tensor> expected = expected_gradients(rows);
  on_ranks(ranks, [&](const Group& group) {
    const std::vector<at::Tensor> weights = make_weights();
    GradientBuckets buckets(group, weights, GetParam());
    EXPECT_EQ(buckets.buckets() == 1, GetParam() > 10'000);
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& weight : weights) weight.mutable_grad() = at::Tensor();
      // The last rank has no rows; the others have half of them each.
      for (int64_t i = 0; i < kRows / 2 && group->rank() < 2; ++i) {
        const int64_t row = group->rank() * kRows / 2 + i;
        if (i + 1 == kRows / 2) buckets.expect_last_backward();
        loss_of(weights, rows.narrow(0, row, 1), row).backward();
      }
      buckets.finish();
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_EQ(weights[i].grad().defined(), expected[i].defined()) << i;
        if (!expected[i].defined()) continue;
        EXPECT_LE((weights[i].grad() - expected[i]).abs().max().item<double>(), 1e-5) << i;
        const auto all = group->gather(weights[i].grad().contiguous());
        for (const at::Tensor& other : all) EXPECT_TRUE(at::equal(other, weights[i].grad()));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Bytes, Buckets, testing::Values(1, 300, 1 << 20));

}  // namespace
}  // namespace ovq::distributed::test
