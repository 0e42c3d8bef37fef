// A run's directory: run.json (what was asked for), metrics.jsonl (a line per step and evaluation), checkpoints/.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>

#include "ovq/train/options.h"

namespace ovq::train {

class RunDirectory {
 public:
  // A new one. Throws std::runtime_error if there is a run already, or if it cannot be written.
  static RunDirectory create(const std::filesystem::path& path, const RunOptions& options);
  static RunDirectory open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const RunOptions& options() const { return options_; }
  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }

  // Lines after `step` are dropped: they will be written again.
  void rewind_metrics(int64_t step) const;
  // Appends a line; std::runtime_error if the disk refuses it.
  void append_metrics(const json& line) const;
  std::vector<json> read_metrics() const;

 private:
  RunDirectory(std::filesystem::path path, RunOptions options) : path_(std::move(path)), options_(std::move(options)) {}

  std::filesystem::path path_;
  RunOptions options_;
};

}  // namespace ovq::train
