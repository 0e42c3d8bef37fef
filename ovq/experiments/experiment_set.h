// Experiments as data. A file experiments/<set>.json lists groups of experiments that are trained and tested alike:
//
//   {"groups": [{"name": "small", "shows": "recall under compression", "claims": [1, 2], "seeds": [10, 11, 12],
//                "options": {"task": "recall", "scale": "small"},
//                "search": {"learning_rates": [1e-3, 2e-3], "seeds": [0]},
//                "evaluations": [{"lengths": [512, 1024], "rows": 48, "keep": [0.33, 0.2]}],
//                "experiments": [{"name": "sw-ovq", "options": {"model": "sw-ovq"}},
//                                {"name": "sw-nope", "options": {"model": "sw-nope"}}]}]}
//
// `options` are those of `ovq train` as run.json names them. An experiment's options are merged over its group's; its
// `shows`, `claims`, `seeds` and `evaluations` replace the group's. Only a group has a search, so that all its
// experiments get the same one. The search's own `options`, such as fewer steps, are merged over those of the
// experiments; its `evaluations` replace theirs; `extend` is the number of rates that may be added beyond an edge. A
// set with the task `text` has a `corpus` beside its groups.
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

// One invocation of `ovq eval`.
struct EvaluationRequest {
  std::vector<int64_t> lengths;    // empty: the lengths that the task's scale is tested at
  std::vector<double> keep;        // shares of the context that dictionaries keep, or
  std::vector<int64_t> centroids;  // their sizes; neither: the size in training
  int64_t rows = 32;
  bool groups = false;  // also store results for each group of targets, such as bins of positions
  // Instead: the loss of identifiers in `rows` windows of text of a single length, by the distance to their last
  // occurrence.
  bool identifiers = false;

  bool operator==(const EvaluationRequest&) const = default;
};

// Every rate is trained with every seed. The reported seeds use the rate with the best mean metric.
struct RateSearch {
  std::vector<double> learning_rates;
  std::vector<uint64_t> seeds;                 // must differ from the reported seeds
  json options = json::object();               // merged over the experiment's
  int64_t extend = 0;                          // rates that may still be added while the best lies at an edge
  std::vector<EvaluationRequest> evaluations;  // empty: the experiment's
};

struct Experiment {
  std::string group, name, shows;
  std::vector<int64_t> claims;                 // numbers of the paper's claims
  json options = json::object();               // of `ovq train`, without the seed
  std::vector<EvaluationRequest> evaluations;  // without dictionary sizes if the model has no dictionary
  std::vector<uint64_t> seeds;
  std::optional<RateSearch> search;
  std::optional<Corpus> corpus;  // of the set; may be missing until the runs are made

  std::string id() const { return group + "/" + name; }
  // The resolved options, with `learning_rate` instead of the one in `options` if given.
  train::RunOptions run_options(uint64_t seed, std::optional<double> learning_rate = std::nullopt) const;
  // The options of a run of the search.
  train::RunOptions search_options(uint64_t seed, double learning_rate) const;
  // The task with these options, used only for its sizes: the corpus may be missing.
  std::unique_ptr<tasks::Task> task_for_sizes(const train::RunOptions& options) const;
  models::ModelConfig model_config(const train::RunOptions& options) const;
};

struct ExperimentSet {
  std::string name;  // of the file
  std::optional<Corpus> corpus;
  std::vector<Experiment> experiments;
};

// An error in the file is a DataError that names it, the experiment and the field.
ExperimentSet read_experiment_set(const std::filesystem::path& file);

std::vector<EvaluationRequest> requests_from_json(const json& list, const std::string& op, const std::string& path);
json to_json(const std::vector<EvaluationRequest>& requests);

}  // namespace ovq::experiments
