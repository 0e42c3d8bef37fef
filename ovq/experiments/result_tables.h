// Results over seeds: for every group and metric a table in Markdown, with experiments and dictionaries as rows,
// lengths as columns, and mean ± standard deviation as entries.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ovq/experiments/experiment_result.h"

namespace ovq::experiments {

// Over several runs.
struct Statistic {
  double mean = 0;
  double deviation = 0;  // of a sample: divided by n - 1; 0 for one run
  int64_t runs = 0;
};
Statistic statistic(const std::vector<double>& values);

// The result files below a directory, sorted by name, without those of searches.
std::vector<std::filesystem::path> result_files(const std::filesystem::path& directory);
// Reads these files.
std::vector<ExperimentResult> read_results(const std::filesystem::path& directory);

// Groups and experiments in the order of their first result; the runs of one experiment share a row. If `against` names
// an experiment, shows differences to it instead, between runs with the same seed; evaluations that it lacks are left
// out.
std::string to_markdown(const std::vector<ExperimentResult>& results, const std::string& against = "");

}  // namespace ovq::experiments
