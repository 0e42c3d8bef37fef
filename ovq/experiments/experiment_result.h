// The outcome of one finished run of an experiment, a small file of its own: results/<set>/<group>/<name>-<seed>.json.
// It says all that is needed to make the run again, and where and how it was made.
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
  train::RunOptions options;                // the seed among them
  std::vector<EvaluationRequest> requests;  // what was to be evaluated
  json search;                              // what the search for the learning rate found; null: there was none
  std::string commit;                       // of the program that trained; empty: the run was found, not made
  std::string evaluated_by;                 // commit of the program that evaluated
  json machine;
  json corpus;  // what it was trained on (Corpus::described); null: no text
  train::TrainingCost training;
  double evaluation_seconds = 0;
  std::string metric;             // "accuracy" or "loss": what counts in `evaluations`
  std::vector<json> codebooks;    // [{"step", "similarity", "unused"}, ...] in training; empty: it has none
  std::vector<json> evaluations;  // as `ovq eval --json` prints them
  std::vector<json> identifiers;  // loss by how long ago an identifier was last spelled; empty: nobody asked
  json choices;                   // what it answered to the corpus's questions, as `ovq eval --benchmark`; null: none

  std::string id() const { return group + "/" + name; }
  int64_t answered() const { return choices.is_null() ? 0 : choices.value("questions", int64_t{0}); }
};

json to_json(const ExperimentResult& result);
// The same as the text of a file: a line for each field, and for each evaluation.
std::string to_file_text(const ExperimentResult& result);
// What is wrong with the file is a DataError that names it.
ExperimentResult read_result(const std::filesystem::path& file);

// What training's metrics say of codebooks, at some of the steps, as results have it.
std::vector<json> codebook_curve(const std::vector<json>& metrics);

// Whether it answers what the experiment asks with these options.
bool answers(const ExperimentResult& result, const train::RunOptions& options,
             const std::vector<EvaluationRequest>& requests);

// Where two runs of the same experiment found something else, a line for each number; speeds are not compared.
std::vector<std::string> differences(const ExperimentResult& before, const ExperimentResult& now);

// The names of options in which two runs differ, for messages; empty: none.
std::string differing_options(const train::RunOptions& a, const train::RunOptions& b);

}  // namespace ovq::experiments
