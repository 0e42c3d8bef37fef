// The runs that experiments need: every experiment with every seed, preceded by the search for its learning rate.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ovq/experiments/experiment_result.h"
#include "ovq/experiments/experiment_set.h"

namespace ovq::experiments {

// Which experiments of a set; by default all.
struct Selection {
  std::vector<int64_t> claims;     // experiments that support one of these claims
  std::vector<std::string> names;  // groups, experiments, or "group/experiment"
  int64_t seeds = 0;               // only the first seeds; 0: all
};

struct SetDirectories {
  std::filesystem::path results, runs;  // of the set
};

struct PlannedRun {
  std::string set;
  Experiment experiment;
  uint64_t seed = 0;
  bool tuning = false;                  // part of the search
  std::optional<double> learning_rate;  // of a search run; of others once the search has ended
  std::string label;                    // <group>/<name>-<seed>, or <group>/search/<name>-rate-<rate>-<seed>
  std::filesystem::path directory;      // of the run
  std::filesystem::path result;         // the file
  SetDirectories directories;

  bool has_questions() const { return !tuning && experiment.corpus && experiment.corpus->questions > 0; }
  bool has_rate() const { return !experiment.search || learning_rate.has_value(); }
  train::RunOptions options() const {
    return tuning ? experiment.search_options(seed, *learning_rate) : experiment.run_options(seed, learning_rate);
  }
  // The result, if its file exists and answers the experiment's requests.
  std::optional<ExperimentResult> finished() const;
};

// A run of the experiment's search for its learning rate.
PlannedRun planned_search_run(const Experiment& experiment, uint64_t seed, double learning_rate,
                              const SetDirectories& directories);

// In the order of the groups. Within a group all experiments run with the first seed, then with the second, so that an
// early stop leaves comparable results. Unknown names and claims are a std::invalid_argument.
std::vector<PlannedRun> plan_runs(const ExperimentSet& set, const Selection& selection,
                                  const SetDirectories& directories);

// Groups, experiments and claims of a set, for completion and error messages.
std::vector<std::string> selectable_names(const ExperimentSet& set);

// The best rate by the results of its runs: highest mean accuracy or lowest mean loss over all evaluations and seeds.
// Ties go to the lower loss, then to the lower rate.
struct RateChoice {
  double learning_rate = 0;
  json record;  // [{"learning_rate", "score", "loss", "runs"}, ...], for the result
};
RateChoice choose_rate(const std::vector<ExperimentResult>& tuning);

// The next rate to try if the best one lies at an edge of those tried: best^2 / neighbour. None if the search may not
// be extended.
std::optional<double> next_rate(const RateSearch& search, const std::vector<ExperimentResult>& tuning);

}  // namespace ovq::experiments
