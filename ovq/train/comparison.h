// `ovq compare`: what evaluations of several runs found, a table for each task: runs and dictionaries against lengths;
// of text, also the loss by position.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ovq/train/run.h"

namespace ovq::train {

// What a run cost so far.
struct TrainingCost {
  int64_t steps = 0, tokens = 0;
  double seconds = 0;  // of the steps; without evaluations and checkpoints
};
TrainingCost training_cost(const std::vector<nlohmann::json>& metrics);

// A run with dictionaries of one size, or of sizes that keep one share of every length.
struct ComparisonRow {
  std::string label;
  std::map<int64_t, double> by_length;  // the metric
  // At the longest length:
  int64_t centroids = 0;
  bool every_token = false;  // has a centroid of its own
  std::optional<double> keep;
  double state_bytes = 0, tokens_per_second = 0;
};

struct ComparisonTable {
  std::vector<ComparisonRow> rows;  // runs in order; of one run those by size first, then those by share
  std::vector<std::string> costs;   // a line for each run
};

// What a run on text found at one length, by position.
struct PositionLoss {
  std::string label;
  int64_t length = 0, bin = 0;
  std::vector<double> losses;  // of each `bin` positions
  double mean = 0;
  double state_bytes = 0;
};

// Rows of by_position() against some positions, the last among them.
std::string to_table(const std::vector<PositionLoss>& losses);

class RunComparison {
 public:
  // `warn` hears of runs without evaluations. Reads no data of the task; looks at the checkpoint only for results from
  // before they had `keep`.
  void add(const Run& run, const Warn& warn);

  const std::map<std::string, ComparisonTable>& tables() const { return tables_; }  // by title: task, scale, metric
  const nlohmann::json& results() const { return results_; }  // all of them, each with its run and what that cost

  // Of all runs, at the longest length that every one of them was tested at; none where there is no such length. A
  // std::invalid_argument if a run is not on text.
  std::vector<PositionLoss> by_position() const;

  std::string to_text() const;

 private:
  std::map<std::string, ComparisonTable> tables_;
  std::vector<std::vector<PositionLoss>> positions_;  // of each run
  std::string not_text_;                              // a run that has no positions
  nlohmann::json results_ = nlohmann::json::array();
};

}  // namespace ovq::train
