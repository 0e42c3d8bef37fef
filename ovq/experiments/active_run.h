// A run of an experiment in progress: trained, then evaluated, by one child process after the other. An interrupted run
// resumes from its last checkpoint. If its directory already holds a finished run with the same options, the run is
// only evaluated.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ovq/experiments/child_process.h"
#include "ovq/experiments/plan.h"

namespace ovq::experiments {

// The program, commit and machine that runs are made with.
struct RunEnvironment {
  std::filesystem::path program;  // `ovq`
  std::string commit;             // its commit
  json machine;                   // in the form that results store
  bool keep_runs = false;         // false: the directory of a run made here is removed once its result is written
};

class ActiveRun {
 public:
  // `search`: the outcome of the search, stored in the result. std::runtime_error if the directory holds another run.
  ActiveRun(PlannedRun planned, RunEnvironment environment, json search);

  const PlannedRun& planned() const { return planned_; }
  // Checks on the child process and starts the next one; true once the result is written. Throws std::runtime_error if
  // the run fails.
  bool advance();
  void stop() { process_->terminate(); }  // does not wait

  struct Position {
    int64_t step = 0, steps = 0;
    size_t evaluations = 0;  // completed
    bool training = true;
  };
  Position position() const;

 private:
  void begin();
  void train();
  void evaluate(size_t index);
  void answer_questions();
  void read_evaluations(size_t index);
  void finish();
  std::filesystem::path log() const { return planned_.directory.string() + ".log"; }
  std::filesystem::path marker() const { return planned_.directory / "reproduce.json"; }
  std::filesystem::path output(size_t index) const;
  bool made_here() const { return std::filesystem::exists(marker()); }

  PlannedRun planned_;
  RunEnvironment environment_;
  json search_;
  train::RunOptions options_;
  bool training_ = true;
  size_t evaluation_ = 0;   // the current one
  bool answering_ = false;  // the corpus's questions, after the last evaluation
  std::vector<json> evaluations_, identifiers_;
  json choices_;
  double evaluation_seconds_ = 0;
  std::chrono::steady_clock::time_point started_;  // when the child process started
  std::streamoff log_begin_ = 0;                   // offset of its output in the log
  std::unique_ptr<ChildProcess> process_;          // the last member, so destroyed first
};

}  // namespace ovq::experiments
