// Results over seeds: for every group and metric a table in Markdown, experiments and dictionaries against lengths,
// with mean ± standard deviation.
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

// The files of results below a directory, in the order of their names; those of searches are left out.
std::vector<std::filesystem::path> result_files(const std::filesystem::path& directory);
// What they hold.
std::vector<ExperimentResult> read_results(const std::filesystem::path& directory);

// Groups and experiments in the order in which they come first; runs of one experiment are one line. With the name of
// an experiment in `against`, differences to it instead, run by run with the same seed; what it did not do is left out.
std::string to_markdown(const std::vector<ExperimentResult>& results, const std::string& against = "");

}  // namespace ovq::experiments
