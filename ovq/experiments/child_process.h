// A program that runs beside this one. It is asked to end (SIGTERM) when its object goes, and when this process dies.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ovq::experiments {

struct ChildOptions {
  std::vector<std::string> command;                     // a program and its arguments
  std::optional<std::filesystem::path> output, errors;  // none: where this process prints
  std::map<std::string, std::string> environment = {};  // over that of this process
  std::vector<int> cpus = {};                           // it may run on these only; none: on all of this process
};

class ChildProcess {
 public:
  // std::runtime_error if a file cannot be opened or no process made.
  explicit ChildProcess(const ChildOptions& options);
  // `command` is a program and its arguments; `output` receives what it prints, and what it says of errors is added at
  // the end of `errors`. std::runtime_error if a file cannot be opened or no process made.
  ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& output,
               const std::filesystem::path& errors);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  // Its exit status once it has ended, 128 + the signal if one ended it; nothing while it runs.
  std::optional<int> poll();
  void terminate();  // asks it to end, once: a second signal would end it at once
  void kill();       // ends it
  pid_t id() const { return id_; }

 private:
  std::optional<int> wait(int flags);

  pid_t id_ = -1;
  std::optional<int> status_;
  bool asked_ = false;  // to end
};

}  // namespace ovq::experiments
