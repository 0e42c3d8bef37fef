// The outcome of one finished run of an experiment, in a small file of its own:
// results/<set>/<group>/<name>-<seed>.json. It holds all that is needed to repeat the run, and where and how the run
// was made.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ovq/experiments/experiment_set.h"
#include "ovq/train/comparison.h"

namespace ovq::experiments {

struct ExperimentResult {
  std::string group, name, shows;
  std::vector<int64_t> claims;
  train::RunOptions options;                // including the seed
  std::vector<EvaluationRequest> requests;  // the requested evaluations
  json search;                              // the outcome of the search for the learning rate; null: no search
  std::string commit;                       // of the program that trained; empty: the run already existed
  std::string evaluated_by;                 // commit of the program that evaluated
  json machine;
  json corpus;  // the training text (Corpus::described); null: no text
  train::TrainingCost training;
  double evaluation_seconds = 0;
  std::string metric;             // "accuracy" or "loss": the metric of `evaluations`
  std::vector<json> codebooks;    // [{"step", "similarity", "unused"}, ...] in training; empty: no codebooks
  std::vector<json> evaluations;  // as `ovq eval --json` prints them
  std::vector<json> identifiers;  // loss of identifiers by the distance to their last occurrence; empty: not requested
  json choices;  // its answers to the corpus's questions, as printed by `ovq eval --benchmark`; null: none

  std::string id() const { return group + "/" + name; }
  int64_t answered() const { return choices.is_null() ? 0 : choices.value("questions", int64_t{0}); }
};

json to_json(const ExperimentResult& result);
// The text of the file: a line for each field, and for each evaluation.
std::string to_file_text(const ExperimentResult& result);
// An invalid file is a DataError that names it.
ExperimentResult read_result(const std::filesystem::path& file);

// The codebook metrics of training at some of the steps, as stored in results.
std::vector<json> codebook_curve(const std::vector<json>& metrics);

// Whether the result holds what the experiment asks for with these options.
bool answers(const ExperimentResult& result, const train::RunOptions& options,
             const std::vector<EvaluationRequest>& requests);

// The differences between two runs of the same experiment, a line for each number; speeds are not compared.
std::vector<std::string> differences(const ExperimentResult& before, const ExperimentResult& now);

// The names of the options in which two runs differ, for messages; empty: none.
std::string differing_options(const train::RunOptions& a, const train::RunOptions& b);

}  // namespace ovq::experiments
