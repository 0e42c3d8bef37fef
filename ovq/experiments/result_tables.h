// Results over seeds: for every group and metric a table in Markdown, experiments and dictionaries against lengths,
// with mean ± standard deviation, or with the mean difference to one of them and its 95 % interval, paired by seed.
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
// Half of the 95 % interval of the mean, by Student's t; infinite for one run.
double half_interval(const Statistic& found);

// The files of results below a directory, in the order of their names; those of searches are left out.
std::vector<std::filesystem::path> result_files(const std::filesystem::path& directory);
// What they hold.
std::vector<ExperimentResult> read_results(const std::filesystem::path& directory);

struct TableOptions {
  std::string against;  // an experiment: show differences to it, run by run with the same seed
  std::vector<int64_t>
      groups;  // of targets, such as bins of positions: a column each, at the shortest length that has it
};

// Groups and experiments in the order in which they come first; runs of one experiment are one line.
std::string to_markdown(const std::vector<ExperimentResult>& results, const TableOptions& options = {});

}  // namespace ovq::experiments
