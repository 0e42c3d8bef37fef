// A child process. It is asked to end (SIGTERM) when its object is destroyed or when this process dies.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ovq::experiments {

struct ChildOptions {
  std::vector<std::string> command;                     // program and arguments
  std::optional<std::filesystem::path> output, errors;  // none: inherited from this process
  std::map<std::string, std::string> environment = {};  // overrides this process's variables
  std::vector<int> cpus = {};                           // the CPUs it may run on; empty: all of this process
};

class ChildProcess {
 public:
  // std::runtime_error if a file cannot be opened or the process cannot be started.
  explicit ChildProcess(const ChildOptions& options);
  // `output` receives stdout; stderr is appended to `errors`.
  ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& output,
               const std::filesystem::path& errors);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Its exit status, or 128 + the signal that ended it; empty while it runs.
  std::optional<int> poll();
  void terminate();  // sends SIGTERM, only once: a second one would end it at once
  void kill();       // sends SIGKILL
  pid_t id() const { return id_; }

 private:
  std::optional<int> wait(int flags);

  pid_t id_ = -1;
  std::optional<int> status_;
  bool asked_ = false;  // SIGTERM was sent
};

}  // namespace ovq::experiments
