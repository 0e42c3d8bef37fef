// Communication between ranks, and the errors they see when one is gone.
#include "ovq/distributed/process_group.h"

#include "tests/distributed/ranks.h"

namespace ovq::distributed::test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShort{1600};

template <class Body>
std::string failure_of(Body&& body) {
  try {
    body();
  } catch (const RankFailure& failure) {
    return failure.what();
  }
  return "no failure";
}

TEST(ProcessGroup, Exchanges) {
  on_ranks(3, [](const Group& group) {
    const int64_t rank = group->rank();
    EXPECT_EQ(group->ranks(), 3);
    const at::Tensor x = at::arange(5, at::kDouble) * static_cast<double>(rank + 1);
    group->sum(x);
    EXPECT_TRUE(at::equal(x, at::arange(5, at::kDouble) * 6.0));
    const at::Tensor y = at::full({2, 2}, rank, at::kLong);
    group->broadcast(y, 2);
    EXPECT_TRUE(at::equal(y, at::full({2, 2}, 2, at::kLong)));
    EXPECT_EQ(group->broadcast(rank == 1 ? "hello\n" : "other", 1), "hello\n");
    EXPECT_EQ(group->broadcast(std::string(), 0), "");
    const auto all = group->gather(at::full({1}, rank, at::kLong));
    ASSERT_EQ(all.size(), 3u);
    for (int64_t other = 0; other < 3; ++other) EXPECT_EQ(all[static_cast<size_t>(other)].item<int64_t>(), other);
    EXPECT_TRUE(group->any(rank == 2));
    EXPECT_FALSE(group->any(false));
    std::vector<at::Tensor> tensors;
    std::vector<ProcessGroup::Pending> pending;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({1000}, static_cast<double>(i * rank)));
      pending.push_back(group->begin_sum(tensors.back()));
    }
    for (auto& one : pending) one.wait();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(tensors[static_cast<size_t>(i)][999].item<double>(), 3 * i);
  });
}

TEST(ProcessGroup, NamesWhoDidNotCome) {
  const StoreServer server;
  EXPECT_EQ(failure_of([&] { ProcessGroup(rendezvous_at(server, 1, 3), milliseconds(500)); }),
            "rank 0 2 of 3 did not connect within 0.5 s");
}

TEST(ProcessGroup, NamesWhoHasEnded) {
  on_ranks(
      3,
      [](const Group& group) {
        group->any(false);
        if (group->rank() == 1) return;  // its group is destroyed with the thread
        const std::string failure = failure_of([&] {
          for (int i = 0; i < 1000; ++i) group->any(false);
        });
        EXPECT_NE(failure.find("rank 1 ("), std::string::npos) << failure;
        EXPECT_NE(failure.find("has ended or cannot be reached"), std::string::npos) << failure;
        EXPECT_EQ(failure.find("rank 0"), std::string::npos) << failure;
        EXPECT_EQ(failure.find("rank 2"), std::string::npos) << failure;
      },
      kShort);
}

TEST(ProcessGroup, NamesWhoHangs) {
  on_ranks(
      2,
      [](const Group& group) {
        group->any(false);
        if (group->rank() == 1) {
          std::this_thread::sleep_for(2 * kShort);
          return;
        }
        const std::string failure = failure_of([&] { group->any(false); });
        EXPECT_NE(failure.find("rank 1 ("), std::string::npos) << failure;
        EXPECT_NE(failure.find("hangs"), std::string::npos) << failure;
      },
      kShort);
}

TEST(ProcessGroup, PassesOnWhyARankEnds) {
  on_ranks(
      2,
      [](const Group& group) {
        group->any(false);
        if (group->rank() == 1) {
          group->leave_with("no space left");
          return;
        }
        EXPECT_EQ(failure_of([&] { group->any(false); }), "rank 1 ended: no space left");
      },
      kShort);
}

TEST(StoreServer, KeepsWhatWasSaidFirst) {
  StoreServer server;
  EXPECT_EQ(server.said(0), "");
  server.say(0, "first");
  server.say(0, "second");
  EXPECT_EQ(server.said(0), "first");
  EXPECT_EQ(server.said(1), "");
}

}  // namespace
}  // namespace ovq::distributed::test
