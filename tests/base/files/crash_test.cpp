// Writers killed by SIGKILL: at random moments, and before and after each of their system calls in turn. The target
// must always be whole, and leftovers beside it must be removable.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ovq/base/files/durable.h"
#include "ovq/base/files/numbered_directories.h"
#include "ovq/base/files/safetensors.h"
#include "tests/base/files/fixtures.h"
#include "tests/base/files/writers.h"

namespace ovq::files::test {
namespace {

namespace fs = std::filesystem;

// Kills happen within the time of two rewrites, however slow the disk. Before every second kill the test waits for one
// rewrite.
TEST(Crash, RandomKillsLeaveTheTargetWhole) {
  constexpr int kKills = 60;
  constexpr size_t kBytes = 200'000;
  std::mt19937 random(1);
  for (const Writer& writer : writers()) {
    SCOPED_TRACE(writer.name);
    const TemporaryDirectory directory;
    const fs::path path = directory.path() / "target";
    const auto start = std::chrono::steady_clock::now();
    writer.write(path, 0, kBytes);
    const std::chrono::duration<double> rewrite = std::chrono::steady_clock::now() - start;
    std::uniform_real_distribution<double> moment(0, 2 * rewrite.count());
    int generation = 0;
    for (int kill = 0; kill < kKills; ++kill) {
      int ends[2];
      ASSERT_EQ(::pipe(ends), 0);
      const Descriptor from_child(ends[0]);
      Descriptor to_parent(ends[1]);
      const pid_t child = fork_child([&] {
        for (int next = generation + 1;; ++next) {
          writer.write(path, next, kBytes);
          if (::write(to_parent.number(), "x", 1) != 1) return;
        }
      });
      ASSERT_GT(child, 0);
      to_parent = Descriptor();
      const bool wait = kill % 2 == 1;
      char done;
      if (wait) {
        ASSERT_EQ(::read(from_child.number(), &done, 1), 1) << "the writer failed";
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
      ASSERT_EQ(::kill(child, SIGKILL), 0);
      int status;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed";
      const int now = writer.read(path);
      ASSERT_GE(now, generation + (wait ? 1 : 0));
      generation = now;
      if (kill % 8 == 0) {
        remove_stale_parts(directory.path());
        EXPECT_EQ(directory.names(), std::vector<std::string>{"target"});
      }
    }
  }
}

enum class Outcome { killed, finished, untraceable };

// Runs `work` in a child that is killed at its `stop`-th entry or exit of a system call.
Outcome kill_at(int stop, const std::function<void()>& work) {
  const pid_t child = fork_child([&] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);
    work();
  });
  int status;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return Outcome::untraceable;
  for (int i = 0; i < stop; ++i) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return Outcome::finished;
    }
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return Outcome::killed;
}

// Calls `work` in children killed at the first, second, ... stop until one finishes, and `check` after each.
// Returns the number killed.
int kill_everywhere(const std::function<void()>& work, const std::function<void()>& check) {
  for (int stop = 1;; ++stop) {
    SCOPED_TRACE(testing::Message() << "killed at stop " << stop);
    const Outcome outcome = kill_at(stop, work);
    if (outcome == Outcome::untraceable) return 0;
    check();
    if (outcome == Outcome::finished || testing::Test::HasFailure()) return stop - 1;
  }
}

TEST(Crash, AKillAtAnySystemCallLeavesTheTargetWhole) {
  for (const Writer& writer : writers()) {
    SCOPED_TRACE(writer.name);
    const TemporaryDirectory directory;
    const fs::path path = directory.path() / "target";
    writer.write(path, 1, 100);
    bool old_seen = false, new_seen = false;
    const int kills = kill_everywhere([&] { writer.write(path, 2, 100); },
                                      [&] {
                                        const int generation = writer.read(path);
                                        (generation == 1 ? old_seen : new_seen) = true;
                                        remove_stale_parts(directory.path());
                                        EXPECT_EQ(directory.names(), std::vector<std::string>{"target"});
                                        EXPECT_EQ(writer.read(path), generation);
                                        if (generation != 1) writer.write(path, 1, 100);
                                      });
    if (kills == 0) GTEST_SKIP() << "processes cannot be traced here";
    EXPECT_TRUE(old_seen && new_seen);
    EXPECT_GT(kills, 20);
  }
}

TEST(Crash, TwoStepsAreWholeAfterCleaningUp) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "target", aside = directory.path() / "target.part-1-1";
  replace_directory(path, 1, 100);
  const auto check = [&] {
    remove_stale_parts(directory.path());
    EXPECT_EQ(directory.names(), std::vector<std::string>{"target"});
    directory_generation(path);
  };
  const auto work = [&] {
    replace_directory(aside, 2, 100);
    detail::replace_in_two_steps(aside, path);
  };
  if (kill_everywhere(work, check) == 0) GTEST_SKIP() << "processes cannot be traced here";
}

TEST(Crash, AKillAtAnySystemCallOfKeepLastLeavesWholeDirectories) {
  const TemporaryDirectory directory;
  const auto refill = [&] {
    for (int number = 1; number <= 4; ++number) {
      const fs::path path = numbered_path(directory.path(), "step-", number);
      if (!fs::exists(path)) replace_directory(path, number, 100);
    }
  };
  refill();
  const auto check = [&] {
    const std::vector<NumberedDirectory> found = latest_first(directory.path(), "step-");
    ASSERT_GE(found.size(), 2u);
    EXPECT_EQ(found[0].number, 4);
    EXPECT_EQ(found[1].number, 3);
    for (const NumberedDirectory& step : found) EXPECT_EQ(directory_generation(step.path), step.number);
    remove_stale_parts(directory.path());
    EXPECT_EQ(directory.names().size(), found.size());
    refill();
  };
  if (kill_everywhere([&] { keep_last(directory.path(), "step-", 2); }, check) == 0) {
    GTEST_SKIP() << "processes cannot be traced here";
  }
}

}  // namespace
}  // namespace ovq::files::test
