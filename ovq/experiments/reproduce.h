// `ovq reproduce`: makes the runs of a plan, several at a time, each by processes of one thread. What has a result is
// not made again; a run that fails is reported, and the others go on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ovq/experiments/active_run.h"
#include "ovq/experiments/estimate.h"
#include "ovq/experiments/plan.h"

namespace ovq::experiments {

struct ReproduceProgress {
  struct Running {
    std::string label;
    ActiveRun::Position position;
  };
  size_t runs = 0, done = 0, failed = 0;
  std::vector<Running> running;
  double seconds_left = 0;
};

// Who watches and steers; every function may be empty.
struct ReproduceHooks {
  std::function<void(const ReproduceProgress&)> on_progress;  // about once a second
  std::function<void(const PlannedRun&, const ExperimentResult&)> on_result;
  std::function<void(const PlannedRun&, const std::string& reason)> on_failure;
  std::function<bool()> stop;  // true: end the processes, which save what they have, and return
};

enum class ReproduceOutcome { finished, some_failed, stopped };

class Reproduction {
 public:
  Reproduction(std::vector<PlannedRun> plan, RunEnvironment environment);

  size_t runs() const { return jobs_.size(); }
  size_t done() const { return count(State::done); }
  // Until all is done, `parallel` runs at a time.
  double seconds_left(int parallel) const;
  // A line for each run: what is done, what was begun, and how long it takes.
  std::string plan_table() const;

  ReproduceOutcome run(int parallel, const ReproduceHooks& hooks);

 private:
  enum class State { waiting, running, done, failed };
  struct Job {
    PlannedRun planned;
    RunEstimate estimate;
    State state = State::waiting;
    std::unique_ptr<ActiveRun> active;
    std::chrono::steady_clock::time_point began;
    bool diverged = false;      // there is no result
    double seconds_before = 0;  // estimated seconds of work that were done when it began
  };

  static Job make_job(PlannedRun planned);
  size_t count(State state) const;
  double work_done(const Job& job) const;  // in estimated seconds
  double correction() const;               // real seconds for each estimated one, in the runs made so far
  std::vector<const Job*> search_of(const Job& job) const;
  bool may_start(const Job& job) const;
  std::vector<ExperimentResult> results_of_search(const Job& job) const;
  void extend_searches(const ReproduceHooks& hooks);
  size_t extend_search_of(size_t index);
  void repeat_others(const PlannedRun& chosen);
  void start(Job& job);
  void advance(Job& job, const ReproduceHooks& hooks);
  void fail(Job& job, const std::string& reason, const ReproduceHooks& hooks);
  void start_some(int parallel, const ReproduceHooks& hooks);
  ReproduceProgress progress(int parallel) const;

  RunEnvironment environment_;
  std::vector<Job> jobs_;
  bool changed_ = true;                              // a run ended, or one was added, since extend_searches
  double real_seconds_ = 0, estimated_seconds_ = 0;  // of runs that ended here
};

// A finished result made again from its file alone: the run that `ovq reproduce --from` makes, in `runs`.
PlannedRun planned_again(const ExperimentResult& result, const std::filesystem::path& runs);

}  // namespace ovq::experiments
