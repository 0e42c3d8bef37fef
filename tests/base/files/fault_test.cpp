// Writers whose system calls fail one after the other: no space, a device error, a signal, or a short write. A writer
// succeeds or throws; in both cases the target is whole and leftovers beside it are removable.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>

#include "ovq/base/files/numbered_directories.h"
#include "ovq/base/json_lines.h"
#include "tests/base/files/writers.h"

namespace ovq::files::test {
namespace {

namespace fs = std::filesystem;

#ifdef __x86_64__

constexpr int kShortWrite = 0;  // instead of an error number

bool writes_bytes(uint64_t call) { return call == SYS_write || call == SYS_pwrite64; }

bool touches_files(uint64_t call) {
  constexpr uint64_t kCalls[] = {SYS_open,       SYS_openat,    SYS_write,      SYS_pwrite64,  SYS_writev, SYS_fsync,
                                 SYS_fdatasync,  SYS_close,     SYS_rename,     SYS_renameat,  SYS_flock,  SYS_fstat,
                                 SYS_newfstatat, SYS_renameat2, SYS_mkdir,      SYS_mkdirat,   SYS_unlink, SYS_unlinkat,
                                 SYS_rmdir,      SYS_lseek,     SYS_getdents64, SYS_ftruncate, SYS_statx,  SYS_stat,
                                 SYS_lstat,      SYS_readlink,  SYS_fcntl};
  return std::find(std::begin(kCalls), std::end(kCalls), call) != std::end(kCalls);
}

struct Faulty {
  bool traceable = true;
  bool reached = false;  // whether the call that should fail was reached
  int status = 0;        // as of fork_child; -1: ended by a signal
  uint64_t call = 0;
  bool lists = false;  // the call opens a directory
};

// Runs `work` in a child whose call number `which` of those that touch files, or that write bytes, fails.
Faulty run_with_fault(int which, int fault, const std::function<void()>& work) {
  Faulty result;
  const pid_t child = fork_child([&] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(3);
    ::raise(SIGSTOP);
    work();
  });
  int status;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return {.traceable = false};
  for (int count = 0, stop = 0;; ++stop) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) break;
    user_regs_struct registers;
    if (stop % 2 != 0 || ::ptrace(PTRACE_GETREGS, child, nullptr, &registers) != 0)
      continue;  // the exit of a system call
    const uint64_t call = registers.orig_rax;
    if (!(fault == kShortWrite ? writes_bytes(call) && registers.rdx > 1 : touches_files(call))) continue;
    if (++count != which) continue;
    result.reached = true;
    result.call = call;
    result.lists = call == SYS_openat && (registers.rdx & O_DIRECTORY) != 0;
    if (fault == kShortWrite) {
      registers.rdx /= 2;
      ::ptrace(PTRACE_SETREGS, child, nullptr, &registers);
      continue;
    }
    registers.orig_rax = ~uint64_t{0};  // no such call, so the kernel does nothing
    ::ptrace(PTRACE_SETREGS, child, nullptr, &registers);
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    ++stop;
    ::ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    registers.rax = static_cast<uint64_t>(-int64_t{fault});
    ::ptrace(PTRACE_SETREGS, child, nullptr, &registers);
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// Lets every call fail in turn, with every fault; `check` inspects the result each time. Returns how many failed.
int fail_everywhere(const std::function<void()>& work, const std::function<void(const Faulty&, int fault)>& check) {
  int failed = 0;
  for (const int fault : {ENOSPC, EIO, EINTR, kShortWrite}) {
    for (int which = 1;; ++which) {
      const Faulty result = run_with_fault(which, fault, work);
      if (!result.traceable) return 0;
      SCOPED_TRACE(testing::Message() << "fault " << fault << " of call " << which << ", number " << result.call);
      EXPECT_TRUE(result.status == 0 || result.status == 1) << result.status;
      check(result, fault);
      if (!result.reached || testing::Test::HasFailure()) break;
      ++failed;
    }
  }
  return failed;
}

TEST(Faults, LeaveTheTargetWhole) {
  for (const Writer& writer : writers()) {
    SCOPED_TRACE(writer.name);
    const TemporaryDirectory directory;
    const fs::path path = directory.path() / "target";
    writer.write(path, 1, 100);
    const auto check = [&](const Faulty& result, int fault) {
      const int generation = writer.read(path);
      if (result.status == 0) {
        EXPECT_EQ(generation, 2);
      }
      // Short writes are completed and interrupted calls repeated, except by the standard library, which lists
      // directories.
      const bool repeated = writes_bytes(result.call) || result.call == SYS_fsync || result.call == SYS_flock ||
                            (result.call == SYS_openat && !result.lists);
      const bool harmless = fault == kShortWrite || (fault == EINTR && repeated);
      if (harmless || !result.reached) {
        EXPECT_EQ(result.status, 0);
      }
      remove_stale_parts(directory.path());
      EXPECT_EQ(directory.names(), std::vector<std::string>{"target"});
      if (generation != 1) writer.write(path, 1, 100);
    };
    const int failed = fail_everywhere([&] { writer.write(path, 2, 100); }, check);
    if (failed == 0) GTEST_SKIP() << "processes cannot be traced here";
    EXPECT_GT(failed, 30);
  }
}

TEST(Faults, OfKeepLastLeaveWholeDirectories) {
  const TemporaryDirectory directory;
  const auto refill = [&] {
    for (int number = 1; number <= 3; ++number) {
      const fs::path path = numbered_path(directory.path(), "step-", number);
      if (!fs::exists(path)) replace_directory(path, number, 100);
    }
  };
  refill();
  const auto check = [&](const Faulty&, int) {
    const std::vector<NumberedDirectory> found = latest_first(directory.path(), "step-");
    ASSERT_GE(found.size(), 1u);
    EXPECT_EQ(found[0].number, 3);
    for (const NumberedDirectory& step : found) EXPECT_EQ(directory_generation(step.path), step.number);
    remove_stale_parts(directory.path());
    EXPECT_EQ(directory.names().size(), found.size());
    refill();
  };
  if (fail_everywhere([&] { keep_last(directory.path(), "step-", 1); }, check) == 0)
    GTEST_SKIP() << "processes cannot be traced here";
}

TEST(Faults, AppendedLinesAreThereOrAnErrorIsThrown) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "lines.jsonl";
  append_json_line(path, {{"line", 1}});
  const std::string before = get_file(path);
  const auto check = [&](const Faulty& result, int fault) {
    const auto lines = read_json_lines(path);
    ASSERT_GE(lines.size(), 1u);
    EXPECT_EQ(lines[0]["line"], 1);
    if (result.status == 0) {
      EXPECT_EQ(lines.size(), 2u);
    }
    if (fault == kShortWrite || (fault == EINTR && writes_bytes(result.call))) {
      EXPECT_EQ(result.status, 0);
    }
    put_file(path, before);
  };
  if (fail_everywhere([&] { append_json_line(path, {{"line", 2}}); }, check) == 0)
    GTEST_SKIP() << "processes cannot be traced here";
}

#endif

}  // namespace
}  // namespace ovq::files::test
