// A run: its options, its task, its checkpoints, what was measured and what evaluations found. In its directory:
// run.json (what was asked for), metrics.jsonl (a line per step and evaluation), checkpoints/, evaluations.jsonl.
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
  // A new one. Throws std::runtime_error if there is a run already, or if it cannot be written. `task` is that of the
  // options, if it was made already.
  static Run create(const std::filesystem::path& path, const RunOptions& options,
                    std::shared_ptr<const tasks::Task> task = nullptr);
  // std::runtime_error if there is a run already.
  static void check_new(const std::filesystem::path& path);
  // Reads run.json, nothing else. What is wrong with it is a std::runtime_error that names the file.
  static Run open(const std::filesystem::path& path);

  // One whose directory another process reads and writes; what is in it is not looked at.
  static Run elsewhere(const std::filesystem::path& path, const RunOptions& options) { return {path, options}; }

  const std::filesystem::path& path() const { return path_; }
  const RunOptions& options() const { return options_; }
  const tasks::TaskDescription& description() const { return description_; }
  std::string label() const;  // model and directory, for tables

  // The task, made at the first call: its text is read when a first sample asks for it, once for this run. `over` are
  // options over those of the run; with them, a task for each. Options that are wrong are a std::runtime_error.
  std::shared_ptr<const tasks::Task> task(const json& over = json::object()) const;

  // The newest sound checkpoint; `warn` hears of damaged ones that were passed over. Looked for anew at every call.
  std::optional<std::filesystem::path> checkpoint(const Warn& warn) const;
  // Its model; std::runtime_error if there is none.
  TrainedModel load_model(const Warn& warn) const;
  // Its configuration or, before the first checkpoint, that of the options.
  models::ModelConfig config(const Warn& warn) const;

  // For whoever trains: nobody else can while the descriptor lives. std::runtime_error if somebody does and does not
  // end soon, as one that was told to and is saving.
  files::Descriptor lock(std::chrono::milliseconds patience = std::chrono::seconds(10)) const;

  std::vector<json> metrics() const;
  // Appends a line; std::runtime_error if the disk refuses it.
  void append_metrics(const json& line) const;
  // Lines after `step` are dropped: they will be written again.
  void rewind_metrics(int64_t step) const;

  std::vector<json> results() const;
  // A result for the same question is replaced; those of other checkpoints are dropped.
  void store_result(const Result& result) const;

 private:
  Run(std::filesystem::path path, RunOptions options);

  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path results_file() const { return path_ / "evaluations.jsonl"; }

  std::filesystem::path path_;
  RunOptions options_;
  tasks::TaskDescription description_;
  mutable std::map<json, std::shared_ptr<const tasks::Task>> tasks_;  // by the options over those of the run
};

}  // namespace ovq::train
