// The training loop. A step is a pure function of the weights, the optimiser's state and (seed, step), so a resumed run
// takes the same steps, bit for bit, as one that was never interrupted. The gradients of a step are sums over the parts
// of its batch, which several processes can share: the step is the same up to rounding for any number of them, and has
// the same bits if it has the same parts.
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

// Of the layers that attend to codewords, once they do.
struct CodebookReport {
  double similarity = 0;  // mean cosine of keys and their nearest codewords, in the step's last forward
  double unused = 0;      // share of the codewords that no key of the last hundred steps was near to
};

struct StepReport {
  int64_t step = 0;   // steps done, this one included
  int64_t phase = 0;  // from 0
  int64_t tokens = 0;
  double loss = 0, accuracy = 0, gradient_norm = 0, rate = 0;
  bool skipped = false;
  double seconds = 0;
  std::optional<CodebookReport> codebooks;
};

// Who watches and steers; every function may be empty.
struct TrainHooks {
  std::function<void(const StepReport&)> on_step;
  // `keep`: the share of the context that the dictionary of this evaluation kept, if it was chosen for that.
  std::function<void(int64_t step, const Evaluation&, std::optional<double> keep)> on_evaluation;
  std::function<void(const std::string&)> warn;
  std::function<bool()> stop;  // true: finish the step, save, return
};

// The processes that train together; with none of it, one alone.
struct DataParallel {
  std::shared_ptr<distributed::ProcessGroup> group;
  bool shard_optimizer = false;  // each keeps its share of the optimiser's state only
};

enum class Outcome { finished, target_reached, stopped };

class Trainer {
 public:
  // From the newest sound checkpoint of the run, or from the start. std::runtime_error if another process trains it.
  // Of several processes only the first touches the run's directory; the others call no hooks but `stop` and `warn`.
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
  void enter_phase();  // that of the next step
  StepReport step();
  using Part = std::vector<BatchTensors>;           // rows of every length
  std::vector<Part> own_parts(StepReport& report);  // this rank's parts of the step
  int64_t compute_gradients(const std::vector<Part>& parts, int64_t targets, StepReport& report);
  bool evaluate_now();  // whether the target is reached
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
  PhasePosition position_;                        // the phase of the step that was made last
  std::map<std::string, int64_t> own_centroids_;  // of phases that set none
  Progress progress_;
  int64_t saved_step_ = -1;
};

}  // namespace ovq::train
