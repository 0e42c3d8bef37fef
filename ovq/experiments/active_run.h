// One run of an experiment under way: trained and then evaluated by processes of its own, one after the other. What was
// interrupted goes on from its last checkpoint; a run that somebody else trained with the same options in the same
// directory is only evaluated.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ovq/experiments/child_process.h"
#include "ovq/experiments/plan.h"

namespace ovq::experiments {

// Who does it.
struct Workshop {
  std::filesystem::path program;  // `ovq`
  std::string commit;             // its commit
  json machine;                   // as results have it
  bool keep_runs = false;         // false: a directory made here is removed once its result is written
};

class ActiveRun {
 public:
  // `search`: what the search found, for the result. std::runtime_error if the directory holds another run.
  ActiveRun(PlannedRun planned, Workshop workshop, json search);

  const PlannedRun& planned() const { return planned_; }
  // Looks after the processes; true once the result is written. What fails is a std::runtime_error.
  bool advance();
  void stop() { process_->terminate(); }  // does not wait

  struct Position {
    int64_t step = 0, steps = 0;
    size_t evaluations = 0;  // done
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
  Workshop workshop_;
  json search_;
  train::RunOptions options_;
  bool training_ = true;
  size_t evaluation_ = 0;   // the one under way
  bool answering_ = false;  // the corpus's questions, after the last evaluation
  std::vector<json> evaluations_, identifiers_;
  json choices_;
  double evaluation_seconds_ = 0;
  std::chrono::steady_clock::time_point started_;  // the process
  std::streamoff log_begin_ = 0;                   // of what it says
  std::unique_ptr<ChildProcess> process_;          // the last member: ends first
};

}  // namespace ovq::experiments
