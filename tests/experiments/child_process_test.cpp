// Child processes: their output, how they end, and that they do not outlive their object.
#include "ovq/experiments/child_process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "tests/experiments/sets.h"

namespace ovq::experiments::test {
namespace {

using Command = std::vector<std::string>;

int status_of(ChildProcess& process) {
  std::optional<int> status;
  while (!(status = process.poll())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return *status;
}

std::string content(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ChildProcess, PrintsIntoFilesAndEndsWithItsStatus) {
  const TemporaryDirectory directory;
  const auto out = directory.path() / "out", err = directory.path() / "err";
  for (int time = 0; time < 2; ++time) {
    ChildProcess process(Command{"/bin/sh", "-c", "echo said; echo wrong >&2; exit 3"}, out, err);
    EXPECT_EQ(status_of(process), 3);
    EXPECT_EQ(status_of(process), 3);
  }
  EXPECT_EQ(content(out), "said\n");          // of the last one
  EXPECT_EQ(content(err), "wrong\nwrong\n");  // of both
  ChildProcess both(Command{"/bin/sh", "-c", "echo said; echo wrong >&2"}, err, err);
  EXPECT_EQ(status_of(both), 0);
  EXPECT_EQ(content(err), "wrong\nwrong\nsaid\nwrong\n");
}

TEST(ChildProcess, EndsWhenItIsToldToAndWithItsObject) {
  const TemporaryDirectory directory;
  const auto log = directory.path() / "log";
  ChildProcess told(Command{"/bin/sleep", "100"}, log, log);
  EXPECT_FALSE(told.poll());
  told.terminate();
  EXPECT_EQ(status_of(told), 128 + SIGTERM);
  pid_t id = 0;
  {
    const ChildProcess left(Command{"/bin/sleep", "100"}, log, log);
    id = left.id();
    EXPECT_EQ(kill(id, 0), 0);
  }
  EXPECT_NE(kill(id, 0), 0);
}

// fork copies the parent's handlers; a signal handled by such a copy would be lost.
TEST(ChildProcess, EndsAlsoIfItIsToldToBeforeItsProgramStarts) {
  const TemporaryDirectory directory;
  const auto log = directory.path() / "log";
  const auto before = std::signal(SIGTERM, [](int) {});
  for (int time = 0; time < 20; ++time) {
    ChildProcess process(Command{"/bin/sleep", "5"}, log, log);
    process.terminate();
    EXPECT_EQ(status_of(process), 128 + SIGTERM);
  }
  std::signal(SIGTERM, before);
}

TEST(ChildProcess, SaysWhatCannotBeStarted) {
  const TemporaryDirectory directory;
  const auto log = directory.path() / "log";
  ChildProcess none(Command{(directory.path() / "none").string()}, log, log);
  EXPECT_EQ(status_of(none), 127);
  EXPECT_THROW(ChildProcess(Command{"/bin/true"}, directory.path() / "no/log", log), std::runtime_error);
}

}  // namespace
}  // namespace ovq::experiments::test
