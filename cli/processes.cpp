#include "cli/processes.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/interrupts.h"
#include "ovq/base/json_fields.h"
#include "ovq/core/parallel.h"
#include "ovq/distributed/process_group.h"
#include "ovq/experiments/child_process.h"

namespace ovq::cli {
namespace {

using distributed::ProcessGroup;
using distributed::Rendezvous;
using experiments::ChildProcess;
using std::chrono::milliseconds;

constexpr int kSignalled = 128;
constexpr int kUsage = 2;

milliseconds timeout_of(const ProcessOptions& options) {
  return milliseconds(std::max<int64_t>(1, static_cast<int64_t>(options.timeout * 1000)));
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// Adjacent cores for each process; all cores for each if there are more processes than cores.
std::vector<int> cpus_of(const std::vector<int>& all, int64_t process, int64_t processes) {
  const auto count = static_cast<int64_t>(all.size());
  if (count < processes) return {};
  return {all.begin() + process * count / processes, all.begin() + (process + 1) * count / processes};
}

int share_of_threads(int64_t processes) {
  const int all = kernels::max_threads();
  return std::getenv("OMP_NUM_THREADS") != nullptr ? all : std::max(1, all / static_cast<int>(processes));
}

std::string end_text(size_t rank, int status) {
  if (status > kSignalled)
    return fmt::format("rank {} was ended by signal {} ({})", rank, status - kSignalled,
                       strsignal(status - kSignalled));
  return fmt::format("rank {} ended with status {}", rank, status);
}

// One start of all processes.
class Attempt {
 public:
  Attempt(std::vector<std::string> command, const ProcessOptions& options, int64_t number,
          distributed::StoreServer& server)
      : patience_(std::min(timeout_of(options), milliseconds(5'000))), number_(number), server_(server) {
    const std::vector<int> cpus = allowed_cpus();
    for (int64_t rank = 0; rank < options.processes; ++rank) {
      const auto text = [](int64_t x) { return std::to_string(x); };
      children_.push_back(std::make_unique<ChildProcess>(
          experiments::ChildOptions{.command = command,
                                    .environment = {{"RANK", text(rank)},
                                                    {"LOCAL_RANK", text(rank)},
                                                    {"WORLD_SIZE", text(options.processes)},
                                                    {"LOCAL_WORLD_SIZE", text(options.processes)},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", text(server.port())},
                                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                    {"TORCHELASTIC_RESTART_COUNT", text(number)},
                                                    {kStartedByOvq, "ovq"}},
                                    .cpus = cpus_of(cpus, rank, options.processes)}));
    }
  }

  // Waits until all processes have ended. Returns the first non-zero status, else 0.
  int wait() {
    using Clock = std::chrono::steady_clock;
    constexpr milliseconds kBetweenLooks{10};
    bool passed_on = false;
    Clock::time_point failed;
    while (true) {
      size_t running = 0;
      for (size_t rank = 0; rank < children_.size(); ++rank) {
        const std::optional<int> status = children_[rank]->poll();
        if (!status) ++running;
        if (status == kStoppedStatus) stopped_ = true;
        if (!status || *status == 0 || *status == kStoppedStatus || status_ != 0) continue;
        status_ = *status;
        failed = Clock::now();
        // A message from the rank itself is more specific.
        if (status_ > kSignalled || server_.said(number_).empty()) server_.say(number_, end_text(rank, status_));
      }
      if (running == 0) return status_;
      if (interrupted() && !passed_on) {
        for (auto& child : children_) child->terminate();
        passed_on = true;
      }
      if (status_ != 0 && Clock::now() > failed + patience_) {
        for (auto& child : children_) child->kill();
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  bool stopped() const { return stopped_; }  // by a signal to one of the processes, after saving
  std::string reason() const { return server_.said(number_); }

 private:
  milliseconds patience_;  // time that the others get to end by themselves after a failure
  int64_t number_;
  distributed::StoreServer& server_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  int status_ = 0;
  bool stopped_ = false;
};

[[noreturn]] void end_at_once(const std::string& reason, int status) {
  if (!started_by_ovq()) print_warning(reason);
  std::fflush(nullptr);
  std::_Exit(status);  // the group cannot be closed properly after a failure
}

// Opens the run on the first rank and sends its options to all ranks.
train::Run shared_run(ProcessGroup& group, const std::function<train::Run()>& open) {
  if (group.rank() == 0) {
    const train::Run run = open();
    group.broadcast(json{{"path", run.path().string()}, {"options", to_json(run.options())}}.dump(), 0);
    return run;
  }
  const json object = json::parse(group.broadcast(std::string(), 0));
  return train::Run::elsewhere(object.at("path").get<std::string>(),
                               train::run_options_from_json(object.at("options")));
}

}  // namespace

void train_in_processes(const std::filesystem::path& run, const ProcessOptions& options, int threads,
                        const std::vector<std::string>& flags) {
  catch_signals();
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                      "train",
                                      "--resume",
                                      run.string(),
                                      "--threads",
                                      std::to_string(threads != 0 ? threads : share_of_threads(options.processes)),
                                      "--timeout",
                                      fmt::format("{}", options.timeout)};
  command.insert(command.end(), flags.begin(), flags.end());
  distributed::StoreServer server;
  for (int64_t attempt = 0;; ++attempt) {
    Attempt processes(command, options, attempt, server);
    const int status = processes.wait();
    if (status == 0 && !processes.stopped()) return;
    const std::string reason = processes.reason();
    if (interrupted() && status != 0 && status < kSignalled) print_warning(reason);
    if (interrupted() || status == 0) stop_interrupted();
    if (status == kSignalled + SIGPIPE) end_by_signal(SIGPIPE);
    if (status == kUsage) throw UsageError(reason);
    if (attempt == options.restarts) throw std::runtime_error(reason);
    print_warning(fmt::format("{}; restart {} of {} from the last checkpoint", reason, attempt + 1, options.restarts));
  }
}

void train_as_one_of(const Rendezvous& rendezvous, const ProcessOptions& options,
                     const std::function<train::Run()>& open, const ShowOptions& show) {
  std::shared_ptr<ProcessGroup> group;  // declared outside `try` because the handlers use it
  const auto leave_with = [&group](const std::exception& error) {
    if (group) group->leave_with(error.what());
  };
  try {
    group = std::make_shared<ProcessGroup>(rendezvous, timeout_of(options));
    ShowOptions shown = show;
    shown.parallel.group = group;
    train_and_show(shared_run(*group, open), shown);
  } catch (const distributed::RankFailure& failure) {
    end_at_once(failure.what(), 1);
  } catch (const UsageError& error) {
    leave_with(error);
    end_at_once(error.what(), kUsage);
  } catch (const std::exception& error) {
    leave_with(error);
    end_at_once(error.what(), 1);
  }
}

int threads_of(const Rendezvous& rendezvous, int asked) {
  if (asked != 0) return asked;
  // The launcher may have set each process's cores or number of threads.
  const bool own_cores = allowed_cpus().size() < static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN));
  return own_cores ? kernels::max_threads() : share_of_threads(rendezvous.local_ranks);
}

}  // namespace ovq::cli
