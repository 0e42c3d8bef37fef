// `ovq reproduce`: makes the runs of a plan, several in parallel, each in single-threaded processes. Runs that have a
// result are skipped. A run that fails is reported, and the others continue.
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

// Callbacks of the caller; each may be empty.
struct ReproduceHooks {
  std::function<void(const ReproduceProgress&)> on_progress;  // about once a second
  std::function<void(const PlannedRun&, const ExperimentResult&)> on_result;
  std::function<void(const PlannedRun&, const std::string& reason)> on_failure;
  std::function<bool()> stop;  // true: end the child processes, which save their progress, and return
};

enum class ReproduceOutcome { finished, some_failed, stopped };

class Reproduction {
 public:
  Reproduction(std::vector<PlannedRun> plan, RunEnvironment environment);

  size_t runs() const { return jobs_.size(); }
  size_t done() const { return count(State::done); }
  // Estimated time until all is done, with `parallel` runs at a time.
  double seconds_left(int parallel) const;
  // A line for each run: whether it is done or begun, and how long it takes.
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
    bool diverged = false;      // ended without a result
    double seconds_before = 0;  // estimated seconds of work already done when it started
  };

  static Job make_job(PlannedRun planned);
  size_t count(State state) const;
  double work_done(const Job& job) const;  // in estimated seconds
  double correction() const;               // real per estimated second, over the runs made so far
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
  bool changed_ = true;                              // a run ended or was added since extend_searches
  double real_seconds_ = 0, estimated_seconds_ = 0;  // of runs that ended in this process
};

// Repeats a finished result from its file alone: the run that `ovq reproduce --from` makes, in `runs`.
PlannedRun planned_again(const ExperimentResult& result, const std::filesystem::path& runs);

}  // namespace ovq::experiments
