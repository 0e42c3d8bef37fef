// The exchange between the processes of one training. All hold the same model and take the same steps; each computes
// the gradients of its own rows of a step's batch. Only the first rank reads and writes files. A single process
// exchanges nothing: every function returns its input.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "ovq/distributed/gradient_buckets.h"
#include "ovq/train/checkpoint.h"
#include "ovq/train/evaluate.h"

namespace ovq::train {

class Replicas {
 public:
  explicit Replicas(std::shared_ptr<distributed::ProcessGroup> group) : group_(std::move(group)) {}

  int64_t rank() const { return group_ ? group_->rank() : 0; }
  int64_t ranks() const { return group_ ? group_->ranks() : 1; }
  bool first() const { return rank() == 0; }

  // Broadcasts the first rank's weights, moments (`state`, filled on the first rank only) and progress. From then on
  // gradients are watched.
  void start_alike(models::LanguageModel& model, AdamW& optimizer, const OptimizerState& state, Progress& progress);

  int64_t total(int64_t own);
  void add_up(std::vector<double>& values);
  bool any(bool own) { return group_ ? group_->any(own) : own; }

  // Called before the step's last backward. A rank without a backward calls only add_up_gradients.
  void expect_last_backward();
  void add_up_gradients();
  void add_up_statistics(models::LanguageModel& model);  // before end_step
  void share_update(const AdamW& optimizer);             // after a step of an optimiser with shards

  // The moments of all ranks; complete on the first rank only.
  OptimizerState whole_state(const AdamW& optimizer);
  Evaluation merged(Evaluation own);
  // std::runtime_error names a rank whose weights differ from the first rank's, bit for bit.
  void check_alike(const models::LanguageModel& model);

 private:
  std::shared_ptr<distributed::ProcessGroup> group_;
  std::unique_ptr<distributed::GradientBuckets> buckets_;
};

}  // namespace ovq::train
