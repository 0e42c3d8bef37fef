// Evaluates a model on a task's test rows. Rows are read as streams, in pieces with carried state, so memory grows with
// the length only if the model's state does.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>

#include "ovq/models/language_model.h"
#include "ovq/tasks/task.h"

namespace ovq::train {

struct EvaluateOptions {
  int64_t length = 0;
  int64_t rows = 32;
  int64_t batch = 8;    // rows read at a time
  int64_t piece = 256;  // tokens read at a time
  uint64_t seed = 0;
  int64_t rank = 0, ranks = 1;  // which of several processes this is; each reads a share of the rows
  std::function<bool()> stop;   // called between pieces; true: give up
};

struct GroupScore {
  int64_t targets = 0, right = 0;
  double loss_sum = 0;

  void add(const GroupScore& other);
  double accuracy() const { return targets == 0 ? 0 : static_cast<double>(right) / static_cast<double>(targets); }
  double loss() const { return targets == 0 ? 0 : loss_sum / static_cast<double>(targets); }
};

struct Evaluation {
  int64_t length = 0, rows = 0;
  GroupScore total;
  std::map<int64_t, GroupScore> groups;
  int64_t state_bytes = 0;  // per sequence, at the end
  double seconds = 0;
  int64_t tokens = 0;
};

Evaluation evaluate(models::LanguageModel& model, const tasks::Task& task, const EvaluateOptions& options);
nlohmann::json to_json(const Evaluation& evaluation);

// Tokens [rows, length] and, flattened, the targets and their positions.
struct BatchTensors {
  at::Tensor tokens;     // [rows, length] int64
  at::Tensor positions;  // [targets] into the flattened tokens
  at::Tensor targets;    // [targets]
};
BatchTensors to_tensors(const tasks::Batch& batch);

}  // namespace ovq::train
