// The training loop. A step is a pure function of the weights, the optimiser's state and (seed, step), so a resumed run
// takes the same steps as an uninterrupted one, bit for bit. A step's gradients are sums over the parts of its batch,
// which several processes can share: the step is the same up to rounding for any number of processes, and bit for bit
// if the parts are the same.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "ovq/train/checkpoint.h"
#include "ovq/train/evaluate.h"
#include "ovq/train/gradient_sums.h"
#include "ovq/train/replicas.h"
#include "ovq/train/run.h"

namespace ovq::train {

// Of the layers that attend to codewords, once their codebooks have started.
struct CodebookReport {
  double similarity = 0;  // mean cosine between keys and their nearest codewords, in the step's last forward
  double unused = 0;      // share of the codewords that had no key in the last hundred steps
};

struct StepReport {
  int64_t step = 0;   // steps completed, including this one
  int64_t phase = 0;  // from 0
  int64_t tokens = 0;
  double loss = 0, accuracy = 0, gradient_norm = 0, rate = 0;
  bool skipped = false;
  double seconds = 0;
  std::optional<CodebookReport> codebooks;
};

// Callbacks of the caller; each may be empty.
struct TrainHooks {
  std::function<void(const StepReport&)> on_step;
  // `keep`: the share of the context that this evaluation's dictionary was asked to keep, if any.
  std::function<void(int64_t step, const Evaluation&, std::optional<double> keep)> on_evaluation;
  std::function<void(const std::string&)> warn;
  std::function<bool()> stop;  // true: finish the step, save, return
};

// The processes that train together; by default a single one.
struct DataParallel {
  std::shared_ptr<distributed::ProcessGroup> group;
  bool shard_optimizer = false;  // each process keeps only its share of the optimiser's state
};

enum class Outcome { finished, target_reached, stopped };

class Trainer {
 public:
  // Starts from the newest sound checkpoint of the run, or from the beginning. std::runtime_error if another process
  // trains it. With several processes only the first touches the run's directory; the others call only the hooks `stop`
  // and `warn`.
  Trainer(Run run, TrainHooks hooks, const DataParallel& parallel = {});

  Outcome train();

  const Progress& progress() const { return progress_; }
  const AdamW& optimizer() const { return optimizer_; }
  models::LanguageModel& model() { return *model_; }
  const tasks::Task& task() const { return *task_; }

 private:
  const Phase& phase() const { return phases_[position_.index]; }
  OptimizerState load();  // on the first rank
  Outcome train_steps();
  void enter_phase();  // the next step's phase
  StepReport step();
  using Part = std::vector<BatchTensors>;           // rows of every length
  std::vector<Part> own_parts(StepReport& report);  // this rank's parts of the step
  int64_t compute_gradients(const std::vector<Part>& parts, int64_t targets, StepReport& report);
  bool evaluate_now();  // returns whether the target is reached
  Evaluation evaluate_once(std::optional<double> keep);
  void save();

  Run run_;
  Replicas replicas_;
  files::Descriptor lock_;  // of the run
  TrainHooks hooks_;
  std::shared_ptr<const tasks::Task> task_;
  std::shared_ptr<models::LanguageModel> model_;
  AdamW optimizer_;
  GradientSums gradient_sums_;
  std::vector<Phase> phases_;
  PhasePosition position_;                        // the phase of the last step
  std::map<std::string, int64_t> own_centroids_;  // for phases that set none
  Progress progress_;
  int64_t saved_step_ = -1;
};

}  // namespace ovq::train
