// The options of a training run, as stored in its run.json.
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
  std::string model = "sw-ovq";
  std::string scale = "tiny";
  json task_options = json::object();   // override those of the scale
  json model_options = json::object();  // merged into the model's configuration (RFC 7396)

  std::vector<int64_t> lengths;  // of the training contexts; empty: the scale's
  int64_t tokens_per_step = 0;
  int64_t steps = 0;
  int64_t accumulate = 1;
  double learning_rate = 0;
  double min_learning_rate = -1;  // negative: the preset's
  int64_t warmup = 100;
  AdamWOptions adamw;
  double clip = 1.0;
  uint64_t seed = 0;
  std::vector<Phase> phases;  // empty: one phase with the run's own values
  InitialWeights init_from;

  int64_t eval_every = 100;
  int64_t eval_rows = 32;
  std::vector<double> eval_keep;  // also test with dictionaries that keep these shares of the longest length
  double target = 0;
  int64_t checkpoint_every = 100;
  int64_t keep_checkpoints = 2;
};

// The options with a single value; the command line's flags have the same names.
template <class Fields>
void list_fields(Fields& field, RunOptions& o) {
  field("task", o.task, "the task to learn");
  field("model", o.model, "a pattern of layers, sized by the scale, or a preset's full name");
  field("scale", o.scale, "sizes of task and model");
  field("steps", o.steps, "number of optimiser steps", or_zero(at_least(1), "those of the phases or the scale"));
  field("tokens_per_step", o.tokens_per_step, "tokens per step", or_zero(at_least(1), "those of the scale"));
  field("accumulate", o.accumulate, "parts of a step's batch, computed one after the other or by several processes",
        at_least(1));
  field("learning_rate", o.learning_rate, "highest learning rate", or_zero(at_least(0), "the preset's"));
  field("min_learning_rate", o.min_learning_rate, "learning rate at the end of the cosine; negative: the preset's");
  field("warmup", o.warmup, "steps of linear warm-up to the highest learning rate", at_least(0));
  field("beta1", o.adamw.beta1, "AdamW's decay of the mean");
  field("beta2", o.adamw.beta2, "AdamW's decay of the square");
  field("eps", o.adamw.eps, "AdamW's epsilon");
  field("weight_decay", o.adamw.weight_decay, "AdamW's weight decay, of matrices");
  field("clip", o.clip, "maximum norm of the gradients, which are scaled down to it; 0: no limit");
  field("seed", o.seed, "random seed of weights and data");
  field("eval_every", o.eval_every, "steps between tests", or_zero(at_least(1), "only at the end"));
  field("eval_rows", o.eval_rows, "rows per test", at_least(1));
  field("target", o.target, "stop once the test metric at the longest length of the last phase is this good; 0: never");
  field("checkpoint_every", o.checkpoint_every, "steps between checkpoints", at_least(1));
  field("keep_checkpoints", o.keep_checkpoints, "number of newest checkpoints to keep", at_least(1));
}

constexpr auto retired_fields(const RunOptions&) {
  return std::to_array<RetiredField>({{.name = "keep", .now = "keep_checkpoints"}});
}

json to_json(const RunOptions& options);
// For comparisons with options that an earlier version wrote: without the retired fields of `model_options`.
json to_comparable_json(const RunOptions& options);
// Starts from `defaults`. An error names the option and its allowed values.
RunOptions run_options_from_json(const json& object, const RunOptions& defaults = {});

// Makes the paths of the task's files absolute, so that the run does not depend on the working directory.
RunOptions with_absolute_paths(RunOptions options);

// Fills in everything that the scale and the preset decide.
RunOptions resolved(RunOptions options);

std::unique_ptr<tasks::Task> make_task(const RunOptions& options);
// Reads the data that training and its evaluations will need, so that errors appear at the start.
void check_task(const tasks::Task& task, const RunOptions& options);
// The model for the task's vocabulary. Options for dictionaries are an error if it has none.
models::ModelConfig model_config(const RunOptions& options, int64_t vocab);
// The phases of a run with resolved options: at least one, with every value set except perhaps `centroids`.
std::vector<Phase> phases_of(const RunOptions& options);

}  // namespace ovq::train
