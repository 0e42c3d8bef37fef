// Experiments as data. A file experiments/<set>.json lists groups of rivals, which are trained and tested alike:
//
//   {"groups": [{"name": "small", "shows": "recall under compression", "claims": [1, 2], "seeds": [10, 11, 12],
//                "options": {"task": "recall", "scale": "small"},
//                "search": {"learning_rates": [1e-3, 2e-3], "seeds": [0]},
//                "evaluations": [{"lengths": [512, 1024], "rows": 48, "keep": [0.33, 0.2]}],
//                "experiments": [{"name": "sw-ovq", "options": {"model": "sw-ovq"}},
//                                {"name": "sw-nope", "options": {"model": "sw-nope"}}]}]}
//
// `options` are those of `ovq train` as run.json names them; an experiment's are merged over its group's, and its
// `shows`, `claims`, `seeds` and `evaluations` stand in for them. The search belongs to the group alone: every rival
// gets the same; its own `options`, such as fewer steps, stand over those of the experiments, its `evaluations` in
// their place, and `extend` says how many rates may be added beyond an edge. A set of the task `text` has a `corpus`
// beside its groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ovq/experiments/corpus.h"
#include "ovq/train/options.h"

namespace ovq::experiments {

using nlohmann::json;

// One call of `ovq eval`.
struct EvaluationRequest {
  std::vector<int64_t> lengths;    // empty: what the task's scale is tested on
  std::vector<double> keep;        // shares of the context that dictionaries keep, or
  std::vector<int64_t> centroids;  // their sizes; neither: that of training
  int64_t rows = 32;
  bool groups = false;  // also what was found for each group of targets, such as bins of positions
  // Instead: the loss of identifiers in `rows` windows of text of the one length, by how long ago they were last
  // spelled.
  bool identifiers = false;

  bool operator==(const EvaluationRequest&) const = default;
};

// Every rate is trained with every seed; the one with the best mean metric is used for the seeds that are reported.
struct RateSearch {
  std::vector<double> learning_rates;
  std::vector<uint64_t> seeds;                 // none of those reported
  json options = json::object();               // over the experiment's
  int64_t extend = 0;                          // rates that may still be added where the best lies at an edge
  std::vector<EvaluationRequest> evaluations;  // empty: the experiment's
};

struct Experiment {
  std::string group, name, shows;
  std::vector<int64_t> claims;                 // of the paper, by number
  json options = json::object();               // of `ovq train`, without the seed
  std::vector<EvaluationRequest> evaluations;  // a model without dictionaries is not asked for their sizes
  std::vector<uint64_t> seeds;
  std::optional<RateSearch> search;
  std::optional<Corpus> corpus;  // of the set; need not be there before the runs are made

  std::string id() const { return group + "/" + name; }
  // Resolved; with a learning rate other than that of `options` if one is given.
  train::RunOptions run_options(uint64_t seed, std::optional<double> learning_rate = std::nullopt) const;
  // The same for a run of the search.
  train::RunOptions search_options(uint64_t seed, double learning_rate) const;
  // Of the task with these options; for its sizes, since a corpus may be missing.
  std::unique_ptr<tasks::Task> task_for_sizes(const train::RunOptions& options) const;
  models::ModelConfig model_config(const train::RunOptions& options) const;
};

struct ExperimentSet {
  std::string name;  // that of the file
  std::optional<Corpus> corpus;
  std::vector<Experiment> experiments;
};

// What is wrong with the file is a DataError that names it, the experiment and the field.
ExperimentSet read_experiment_set(const std::filesystem::path& file);

std::vector<EvaluationRequest> requests_from_json(const json& list, const std::string& op, const std::string& path);
json to_json(const std::vector<EvaluationRequest>& requests);

}  // namespace ovq::experiments
