#include "ovq/experiments/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "ovq/base/files/descriptor.h"

namespace ovq::experiments {
namespace {

constexpr int kCannotStart = 127;  // as shells have it

files::Descriptor open_for_writing(const std::filesystem::path& path, int flags) {
  constexpr mode_t kMode = 0644;
  files::Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, kMode));
  if (!file) files::fail_errno("ChildProcess", "open", path);
  return file;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& output,
                           const std::filesystem::path& errors) {
  const files::Descriptor err = open_for_writing(errors, O_APPEND);
  const files::Descriptor out = open_for_writing(output, output == errors ? O_APPEND : O_TRUNC);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  id_ = fork();
  if (id_ < 0) files::fail_errno("ChildProcess", "start", command.front());
  if (id_ > 0) return;
  // In the child: only what is safe after fork.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotStart);  // it died before that
  dup2(out.number(), STDOUT_FILENO);
  dup2(err.number(), STDERR_FILENO);
  execv(arguments.front(), arguments.data());
  _exit(kCannotStart);
}

ChildProcess::~ChildProcess() {
  terminate();
  wait(0);
}

std::optional<int> ChildProcess::wait(int flags) {
  if (status_) return status_;
  int status = 0;
  pid_t ended = 0;
  do {
    ended = waitpid(id_, &status, flags);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return std::nullopt;
  constexpr int kSignalled = 128;
  status_ = ended < 0 ? kCannotStart : WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
  return status_;
}

std::optional<int> ChildProcess::poll() { return wait(WNOHANG); }

void ChildProcess::terminate() {
  if (!poll()) kill(id_, SIGTERM);
}

}  // namespace ovq::experiments
