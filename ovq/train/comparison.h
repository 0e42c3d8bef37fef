// `ovq compare`: the evaluations of several runs, one table for each task. Runs and dictionaries are rows, lengths are
// columns. Runs on text also have the loss by position.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ovq/train/run.h"

namespace ovq::train {

// What a run has cost so far.
struct TrainingCost {
  int64_t steps = 0, tokens = 0;
  double seconds = 0;  // in steps; without evaluations and checkpoints
};
TrainingCost training_cost(const std::vector<nlohmann::json>& metrics);

// A run with dictionaries of one size, or of the sizes that keep one share of every length.
struct ComparisonRow {
  std::string label;
  std::map<int64_t, double> by_length;  // the metric
  // At the longest length:
  int64_t centroids = 0;
  bool every_token = false;  // every token has a centroid of its own
  std::optional<double> keep;
  double state_bytes = 0, tokens_per_second = 0;
};

struct ComparisonTable {
  std::vector<ComparisonRow> rows;  // runs in order; within a run first rows by size, then by share
  std::vector<std::string> costs;   // a line for each run
};

// The loss by position of a run on text at one length.
struct PositionLoss {
  std::string label;
  int64_t length = 0, bin = 0;
  std::vector<double> losses;  // of `bin` positions each
  double mean = 0;
  double state_bytes = 0;
};

// Rows of by_position() at some positions, including the last.
std::string to_table(const std::vector<PositionLoss>& losses);

class RunComparison {
 public:
  // `warn` receives a message for a run without evaluations. Reads no task data, and the checkpoint only if results
  // were stored without `keep`.
  void add(const Run& run, const Warn& warn);

  const std::map<std::string, ComparisonTable>& tables() const { return tables_; }  // by title: task, scale, metric
  const nlohmann::json& results() const { return results_; }  // all results, each with its run and the run's cost

  // All runs, at the longest length that every one of them was tested at; empty if there is no such length.
  // std::invalid_argument if a run is not on text or has bins of another size.
  std::vector<PositionLoss> by_position() const;

  std::string to_text() const;

 private:
  std::map<std::string, ComparisonTable> tables_;
  std::vector<std::vector<PositionLoss>> positions_;  // of each run
  std::string not_text_;                              // a run that is not on text
  nlohmann::json results_ = nlohmann::json::array();
};

}  // namespace ovq::train
