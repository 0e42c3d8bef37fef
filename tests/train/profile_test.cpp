#include "ovq/train/profile.h"

#include <gtest/gtest.h>

#include "tests/train/runs.h"

namespace ovq::train::test {
namespace {

TEST(Profile, CountsEveryKernelOnce) {
  const TemporaryDirectory directory;
  RunOptions options = mini_run("recall", "sw-ovq");
  options.steps = 3;
  options.eval_every = 0;
  options.eval_rows = 1;
  Profile profile;
  Trainer trainer(train::Run::create(directory.path() / "run", options), {});
  trainer.train();
  const auto entries = profile.entries();
  // Two layers, one of each kind; a step has a batch for each of the two lengths.
  for (const char* kernel : {"ovq::attention_backward", "ovq::ovq_attention_backward"}) {
    ASSERT_TRUE(entries.contains(kernel)) << kernel;
    EXPECT_EQ(entries.at(kernel).calls, 3 * 2) << kernel;
    EXPECT_GT(entries.at(kernel).seconds, 0) << kernel;
  }
  int64_t products = 0;
  for (const char* product : {"aten::mm", "ovq::product"}) {
    if (entries.contains(product)) products += entries.at(product).calls;
  }
  EXPECT_GE(products, 3 * 2 * 2 * 7);  // the matrices of a block, at least once each
  const Profile::Shares shares = profile.shares(100.0);
  EXPECT_GT(shares.kernels, 0);
  EXPECT_GT(shares.matrix_products, 0);
  EXPECT_DOUBLE_EQ(shares.kernels + shares.matrix_products + shares.rest, 1.0);
}

TEST(Profile, OneAtATimeAndSilentAfterwards) {
  {
    const Profile profile;
    EXPECT_THROW(Profile(), std::logic_error);
  }
  const Profile profile;  // the first one is gone
  EXPECT_TRUE(profile.entries().empty());
}

}  // namespace
}  // namespace ovq::train::test
