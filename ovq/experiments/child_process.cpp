#include "ovq/experiments/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "ovq/base/files/descriptor.h"

namespace ovq::experiments {
namespace {

constexpr int kCannotStart = 127;  // as in shells
constexpr int kEnding[] = {SIGINT, SIGTERM};

files::Descriptor open_for_writing(const std::filesystem::path& path, int flags) {
  constexpr mode_t kMode = 0644;
  files::Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, kMode));
  if (!file) files::fail_errno("ChildProcess", "open", path);
  return file;
}

// This process's variables, with those of `over` replaced or added.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& over) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!over.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : over) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& output,
                           const std::filesystem::path& errors)
    : ChildProcess({.command = command, .output = output, .errors = errors}) {}

ChildProcess::ChildProcess(const ChildOptions& options) {
  files::Descriptor out, err;
  if (options.errors) err = open_for_writing(*options.errors, O_APPEND);
  if (options.output) out = open_for_writing(*options.output, options.output == options.errors ? O_APPEND : O_TRUNC);
  const std::vector<std::string> variables = environment_with(options.environment);
  const std::vector<char*> arguments = pointers(options.command), environment = pointers(variables);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : options.cpus) CPU_SET(cpu, &cpus);
  const pid_t parent = getpid();
  // Until the new program starts, a signal would run a copy of this process's handler and be lost.
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int number : kEnding) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  id_ = fork();
  if (id_ != 0) {
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    if (id_ < 0) files::fail_errno("ChildProcess", "start", options.command.front());
    return;
  }
  // In the child only async-signal-safe calls are allowed.
  for (const int number : kEnding) {
    if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotStart);  // the parent died before prctl
  if (out) dup2(out.number(), STDOUT_FILENO);
  if (err) dup2(err.number(), STDERR_FILENO);
  if (!options.cpus.empty()) sched_setaffinity(0, sizeof(cpus), &cpus);
  execve(arguments.front(), arguments.data(), environment.data());
  _exit(kCannotStart);
}

ChildProcess::~ChildProcess() {
  terminate();
  wait(0);
}

std::optional<int> ChildProcess::wait(int flags) {
  if (status_) return status_;
  int status = 0;
  const pid_t ended = files::uninterrupted([&] { return ::waitpid(id_, &status, flags); });
  if (ended == 0) return std::nullopt;
  constexpr int kSignalled = 128;
  status_ = ended < 0 ? kCannotStart : WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
  return status_;
}

std::optional<int> ChildProcess::poll() { return wait(WNOHANG); }

void ChildProcess::terminate() {
  if (!poll() && !std::exchange(asked_, true)) ::kill(id_, SIGTERM);
}

void ChildProcess::kill() {
  if (!poll()) ::kill(id_, SIGKILL);
}

}  // namespace ovq::experiments
