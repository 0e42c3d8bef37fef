// What a training run is made of, as run.json in its directory holds it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ovq/models/config.h"
#include "ovq/tasks/registry.h"
#include "ovq/train/adamw.h"
#include "ovq/train/initial_weights.h"
#include "ovq/train/phases.h"

namespace ovq::train {

using nlohmann::json;

struct RunOptions {
  std::string task = "recall";
  std::string model = "sw-ovq";  // a pattern, sized by `scale`, or the name of a preset
  std::string scale = "tiny";
  json task_options = json::object();   // over those of the scale
  json model_options = json::object();  // merged into the model's configuration (RFC 7396)

  std::vector<int64_t> lengths;  // of the training contexts; empty: those of the scale
  int64_t tokens_per_step = 0;   // 0: those of the scale
  int64_t steps = 0;             // 0: those of the phases or, without any, of the scale
  int64_t accumulate = 1;
  double learning_rate = 0;       // 0: the preset's
  double min_learning_rate = -1;  // negative: the preset's
  int64_t warmup = 100;
  AdamWOptions adamw;
  double clip = 1.0;
  uint64_t seed = 0;
  std::vector<Phase> phases;  // empty: one, of the run's own values
  InitialWeights init_from;

  int64_t eval_every = 100;  // steps; 0: only at the end
  int64_t eval_rows = 32;
  std::vector<double> eval_keep;  // also test with dictionaries that keep these shares of the longest length
  double target = 0;  // stop once the test metric at the longest length of the last phase is this good; 0: never
  int64_t checkpoint_every = 100;
  int64_t keep = 2;  // checkpoints
};

json to_json(const RunOptions& options);
// Over `defaults`. Errors name the option and what is allowed.
RunOptions run_options_from_json(const json& object, const RunOptions& defaults = {});

// The options with everything that `scale` and the preset decide filled in.
RunOptions resolved(RunOptions options);

std::unique_ptr<tasks::Task> make_task(const RunOptions& options);
// Reads what training and its evaluations will ask of the task, so that what is wrong with it is said at the start.
void check_task(const tasks::Task& task, const RunOptions& options);
// The model for the task's vocabulary. What is asked of dictionaries is an error if it has none.
models::ModelConfig model_config(const RunOptions& options, int64_t vocab);
// The phases of a run whose options are resolved: at least one, with nothing left open but `centroids`.
std::vector<Phase> phases_of(const RunOptions& options);

}  // namespace ovq::train
