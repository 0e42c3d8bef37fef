// A run: options, task, checkpoints, metrics and evaluations. Its directory holds run.json (the options), metrics.jsonl
// (a line per step and evaluation), checkpoints/ and evaluations.jsonl.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ovq/base/files/descriptor.h"
#include "ovq/tasks/description.h"
#include "ovq/train/checkpoint.h"
#include "ovq/train/options.h"
#include "ovq/train/results.h"

namespace ovq::train {

struct TrainedModel {
  std::filesystem::path checkpoint;
  std::shared_ptr<models::LanguageModel> model;
};

class Run {
 public:
  // Creates a run. std::runtime_error if there already is one, or if it cannot be written. Pass `task` if it has
  // already been made from the options.
  static Run create(const std::filesystem::path& path, const RunOptions& options,
                    std::shared_ptr<const tasks::Task> task = nullptr);
  // std::runtime_error if there already is a run.
  static void check_new(const std::filesystem::path& path);
  // Reads only run.json. An error in it is a std::runtime_error that names the file.
  static Run open(const std::filesystem::path& path);

  // A run whose directory another process reads and writes; this process does not touch it.
  static Run elsewhere(const std::filesystem::path& path, const RunOptions& options) { return {path, options}; }

  const std::filesystem::path& path() const { return path_; }
  const RunOptions& options() const { return options_; }
  const tasks::TaskDescription& description() const { return description_; }
  std::string label() const;  // model and directory, for tables

  // The task, created by the first call. Its text is loaded with the first sample, once for this run. `over` replaces
  // options of the run; each `over` has a task of its own. Wrong options are a std::runtime_error.
  std::shared_ptr<const tasks::Task> task(const json& over = json::object()) const;

  // The newest sound checkpoint, searched for at every call. `warn` receives a message for each damaged one.
  std::optional<std::filesystem::path> checkpoint(const Warn& warn) const;
  // The checkpoint's model; std::runtime_error if there is none.
  TrainedModel load_model(const Warn& warn) const;
  // The checkpoint's configuration or, before the first checkpoint, that of the options.
  models::ModelConfig config(const Warn& warn) const;

  // Prevents other processes from training this run while the descriptor lives. std::runtime_error if another process
  // still trains it after `patience`, which leaves it time to save and end.
  files::Descriptor lock(std::chrono::milliseconds patience = std::chrono::seconds(10)) const;

  std::vector<json> metrics() const;
  // Appends a line; std::runtime_error if it cannot be written.
  void append_metrics(const json& line) const;
  // Drops lines after `step`, which will be written again.
  void rewind_metrics(int64_t step) const;

  std::vector<json> results() const;
  // Replaces a result for the same question and drops results of other checkpoints.
  void store_result(const Result& result) const;

 private:
  Run(std::filesystem::path path, RunOptions options);

  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path results_file() const { return path_ / "evaluations.jsonl"; }

  std::filesystem::path path_;
  RunOptions options_;
  tasks::TaskDescription description_;
  mutable std::map<json, std::shared_ptr<const tasks::Task>> tasks_;  // by the overriding options
};

}  // namespace ovq::train
